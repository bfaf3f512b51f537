"""Networks that were wrong once, as random networks found them, shrunk, each with the seed that it had then."""

from __future__ import annotations

from random_grammar import Network

KEPT: dict[str, Network] = {
    "a gradient inside the forward pass": Network(
        seed=299,
        inputs={"x": (3, 4)},
        examples=4,
        outputs=(4,),
        flexible=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Linear(4, 2)
        self.m2 = nn.Linear(2, 1)

    def forward(self, x):
        h = x
        h = h.logsumexp(1)
        with torch.enable_grad():
            q = h if h.requires_grad else h.detach().requires_grad_()
            energy = self.m2(torch.tanh(self.m1(q)))
            h = torch.autograd.grad(energy.sum(), q, create_graph=True)[0]
        return h
""",
    ),
    "an energy and its gradient": Network(
        seed=106,
        inputs={"x": (3, 3)},
        examples=3,
        outputs=(4,),
        flexible=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Linear(3, 3)
        self.m2 = nn.Linear(3, 1)

    def forward(self, x):
        h = x
        h = h.mean(1)
        with torch.enable_grad():
            q = h if h.requires_grad else h.detach().requires_grad_()
            energy = self.m2(torch.tanh(self.m1(q)))
            h = torch.autograd.grad(energy.sum(), q, create_graph=True)[0]
        h = torch.cat([energy, h], 1)
        return h
""",
    ),
    "distances to prototypes": Network(
        seed=277,
        inputs={"x": (2,), "z": (3,)},
        likelihood="classification",
        examples=4,
        outputs=(4,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Bilinear(2, 3, 2)
        self.p2 = nn.Parameter(torch.zeros((4, 2,)))

    def forward(self, x, z):
        h = x + self.m1(x, z)
        h = torch.cdist(h, self.p2)
        return h
""",
    ),
    "a table of positions scaled in place": Network(
        seed=710,
        inputs={"x": (3, 2)},
        examples=6,
        outputs=(3, 1),
        flexible=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Embedding(4, 2)
        self.m2 = nn.Linear(2, 1)

    def forward(self, x):
        h = x
        pos = self.m1(torch.arange(h.shape[1], device=h.device))
        pos.mul_(2.0)
        h = h + pos
        h = self.m2(torch.sigmoid(h))
        return h
""",
    ),
    "a table of positions changed by relu_": Network(
        seed=393,
        inputs={"x": (4, 4)},
        examples=5,
        outputs=(2,),
        flexible=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(torch.zeros((4,)))
        self.register_buffer("c2", torch.zeros(5, 4))
        self.m3 = nn.Linear(4, 2)

    def forward(self, x):
        h = x
        pos = self.p1 + self.c2[:h.shape[1]]
        pos.relu_()
        h = h + pos.unsqueeze(0)
        h = h.mean(1)
        h = self.m3(F.softplus(h))
        return h
""",
    ),
    "a table of positions with a row written": Network(
        seed=245,
        inputs={"x": (3, 2)},
        likelihood="classification",
        examples=5,
        outputs=(3, 3),
        flexible=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(torch.zeros((2,)))
        self.register_buffer("c2", torch.zeros(4, 2))
        self.m3 = nn.Linear(2, 3)

    def forward(self, x):
        h = x
        pos = self.p1 + self.c2[:h.shape[1]]
        pos[0] = 0.0
        h = h + pos
        h = self.m3(torch.tanh(h))
        return h
""",
    ),
    "a table of positions added as a transpose": Network(
        seed=176,
        inputs={"x": (3,)},
        tokens={"x": (0, 5)},
        likelihood="classification",
        examples=3,
        outputs=(3, 3),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.EmbeddingBag(6, 4, mode="sum")
        self.m2 = nn.Linear(4, 9)
        self.p3 = nn.Parameter(torch.zeros((3,)))
        self.m4 = nn.Linear(3, 3)

    def forward(self, x):
        h = self.m1(x)
        h = self.m2(h).view(-1, 3, 3)
        pos = self.p3.repeat(h.shape[1], 1)
        h = (h.transpose(1, 2) + pos.T).transpose(1, 2)
        h = self.m4(torch.sin(h))
        return h
""",
    ),
    "a table of positions added time-major": Network(
        seed=219,
        inputs={"x": (3,)},
        examples=3,
        outputs=(3, 3),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("c1", torch.zeros(3, 3))
        self.m2 = nn.Embedding(4, 3)
        self.m3 = nn.Linear(3, 3)

    def forward(self, x):
        h = x
        h = h.unsqueeze(1) * self.c1
        pos = self.m2(torch.arange(h.shape[1], device=h.device))
        h = (h.transpose(0, 1) + pos.unsqueeze(1)).transpose(0, 1)
        h = self.m3(F.softplus(h))
        return h
""",
    ),
    "a weight added in place to a slice": Network(
        seed=627,
        inputs={"x": (4, 4)},
        examples=5,
        outputs=(4, 1),
        flexible=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(torch.zeros((3,)))
        self.m2 = nn.Linear(4, 1)

    def forward(self, x):
        h = x
        h = h * 0.9
        h[..., :3].add_(self.p1)
        h = self.m2(F.gelu(h))
        return h
""",
    ),
    "a weight added in place to a column": Network(
        seed=7,
        inputs={"x": (3,)},
        tokens={"x": (0, 5)},
        examples=4,
        outputs=(4,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.EmbeddingBag(6, 4, mode="mean")
        self.p2 = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        h = self.m1(x)
        h = h * 0.9
        h[:, 0].add_(self.p2)
        return h
""",
    ),
    "a weight added in place to a transpose": Network(
        seed=201,
        inputs={"x": (5,)},
        likelihood="classification",
        examples=5,
        outputs=(2,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(torch.zeros((5, 1,)))
        self.m2 = nn.Linear(5, 2)

    def forward(self, x):
        h = x
        h = h * 0.9
        h.transpose(0, 1).add_(self.p1)
        h = self.m2(torch.tanh(h))
        return h
""",
    ),
    "a weight added in place to a permuted base": Network(
        seed=1164,
        inputs={"x": (3, 3, 4)},
        likelihood="classification",
        examples=4,
        outputs=(3,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(torch.zeros((4, 3,)))

    def forward(self, x):
        h = x
        h = h * 0.9
        h = (h.contiguous(memory_format=torch.channels_last) * 1.2).permute(0, 2, 3, 1)
        h += self.p1
        h = h.permute(0, 3, 1, 2)
        h = h.logsumexp((2, 3))
        return h
""",
    ),
    "weights stored transposed in a full posterior": Network(
        seed=493,
        inputs={"ids": (3,), "scale": (3, 1)},
        tokens={"ids": (0, 3)},
        examples=5,
        outputs=(3, 4),
        transposed=True,
        mapping=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Embedding(4, 2)
        self.p2 = nn.Parameter(torch.zeros((1, 3, 2,)))

    def forward(self, ids, scale):
        h = self.m1(ids) * scale
        h = h * self.p2
        h = h @ self.m1.weight.T
        return h
""",
    ),
    "channels_last weights": Network(
        seed=16,
        inputs={"x": (2, 4, 4)},
        likelihood="classification",
        examples=5,
        outputs=(3,),
        channels_last=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 2)
        self.m3 = nn.Linear(3, 3)

    def forward(self, x):
        h = torch.relu(self.m1(x))
        h = torch.tanh(self.m2(h))
        return self.m3(h.mean((2, 3)))
""",
    ),
    "linear weights stored transposed": Network(
        seed=63,
        inputs={"x": (3,)},
        examples=5,
        outputs=(2,),
        transposed=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.m2(torch.tanh(self.m1(x)))
""",
    ),
    "a grid of positions, weights stored transposed": Network(
        seed=354,
        inputs={"x": (3,)},
        tokens={"x": (0, 5)},
        examples=4,
        outputs=(3, 6),
        transposed=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2, self.m3 = nn.Embedding(6, 2), nn.Linear(2, 2), nn.Linear(1, 2)

    def forward(self, x):
        grid = torch.linspace(-1, 1, x.shape[1], dtype=self.m1.weight.dtype, device=x.device)[:, None]
        h = self.m1(x) + self.m2(torch.tanh(self.m3(grid)))
        return h @ self.m1.weight.T
""",
    ),
    "a complex gain": Network(
        seed=11,
        inputs={"x": (4,)},
        examples=5,
        outputs=(2,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Linear(4, 5), nn.Linear(5, 2)
        self.p3 = nn.Parameter(torch.zeros(3, 2))

    def forward(self, x):
        h = torch.fft.rfft(self.m1(x)) * torch.view_as_complex(self.p3.contiguous())
        return self.m2(torch.tanh(torch.fft.irfft(h, n=5)))
""",
    ),
    "a real gain of a spectrum": Network(
        seed=21,
        inputs={"x": (4,)},
        examples=5,
        outputs=(2,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Linear(4, 5), nn.Linear(5, 2)
        self.gain3 = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.m2(torch.tanh(torch.fft.irfft(torch.fft.rfft(self.m1(x)) * self.gain3, n=5)))
""",
    ),
    "weights reached by saved references": Network(
        seed=38,
        inputs={"x": (2,)},
        examples=5,
        outputs=(1,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Linear(2, 3), nn.Linear(3, 1)
        self.saved = [self.m1.weight, self.m1.bias]

    def forward(self, x):
        return self.m2(torch.sin(F.linear(x, *self.saved)))
""",
    ),
    "a padding token": Network(
        seed=165,
        inputs={"x": (3,)},
        tokens={"x": (0, 5)},
        examples=5,
        outputs=(1,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Embedding(6, 3, padding_idx=0), nn.Linear(3, 1)

    def forward(self, x):
        return self.m2(torch.sin(self.m1(x).mean(1)))
""",
    ),
    "a function that is differentiable once": Network(
        seed=26,
        inputs={"x": (4, 2)},
        likelihood="classification",
        examples=4,
        outputs=(3,),
        flexible=True,
        source="""
class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return torch.sin(z)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * torch.cos(ctx.saved_tensors[0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Linear(2, 2), nn.Linear(2, 3)

    def forward(self, x):
        return self.m2(torch.sin(Once.apply(self.m1(x)).mean(1)))
""",
    ),
    "a layout that depends on the length": Network(
        seed=553,
        inputs={"x": (4, 4)},
        examples=5,
        outputs=(4, 1),
        flexible=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        examples, length, width = x.shape
        if length % 2:
            h = self.m1(x.reshape(-1, width)).view(examples, length, -1)
        else:
            h = self.m1(x.transpose(0, 1).reshape(-1, width)).view(length, examples, -1).transpose(0, 1)
        return self.m2(torch.tanh(h))
""",
    ),
    "examples that meet in detached statistics": Network(
        seed=58,
        inputs={"x": (5,)},
        examples=4,
        outputs=(2,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Linear(5, 2)

    def forward(self, x):
        return self.m1(torch.tanh(x / (1 + x.detach().square().mean(0))))
""",
    ),
    "examples that meet in their mean": Network(
        seed=59,
        inputs={"x": (4,)},
        examples=4,
        outputs=(2,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Linear(4, 2)

    def forward(self, x):
        return self.m1(torch.tanh(x - x.mean(0)))
""",
    ),
    "vmap inside the forward pass": Network(
        seed=48,
        inputs={"x": (2,)},
        examples=4,
        outputs=(2,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.m2(F.softplus(torch.func.vmap(self.m1)(x)))
""",
    ),
    "jvp inside the forward pass": Network(
        seed=14,
        inputs={"x": (3,)},
        examples=4,
        outputs=(3,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Linear(3, 3)

    def forward(self, x):
        h, slope = torch.func.jvp(lambda z: torch.tanh(self.m1(z)), (x,), (torch.ones_like(x),))
        return h + slope
""",
    ),
    "a weight whose effect cancels": Network(
        seed=10,
        inputs={"x": (4,)},
        likelihood="classification",
        examples=5,
        outputs=(3,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Linear(4, 3)
        self.one2 = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.m1(x) * self.one2.exp() / self.one2
""",
    ),
    "a branch without gradient": Network(
        seed=90,
        inputs={"x": (3, 2)},
        likelihood="classification",
        examples=3,
        outputs=(3, 3),
        flexible=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Linear(2, 2), nn.Linear(2, 3)

    def forward(self, x):
        with torch.no_grad():
            gate = torch.sigmoid(self.m1(x))
        return self.m2(torch.sigmoid(x * gate))
""",
    ),
    "an embedding bag": Network(
        seed=214,
        inputs={"x": (3,)},
        tokens={"x": (0, 3)},
        examples=6,
        outputs=(2,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.EmbeddingBag(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.m2(torch.sigmoid(self.m1(x)))
""",
    ),
    "a bilinear layer": Network(
        seed=36,
        inputs={"x": (3,), "z": (2,)},
        examples=5,
        outputs=(2,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.Bilinear(3, 2, 3), nn.Linear(3, 2)

    def forward(self, x, z):
        return self.m2(torch.tanh(self.m1(x, z)))
""",
    ),
    "a slope for each channel behind other weights": Network(
        seed=218,
        inputs={"x": (4, 3)},
        examples=5,
        outputs=(1,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1, self.p2 = nn.Parameter(torch.zeros(1, 4, 3)), nn.Parameter(torch.zeros(3))
        self.m3, self.m4 = nn.PReLU(3), nn.Linear(3, 1)

    def forward(self, x):
        h = x * self.p1
        h = torch.where(h > 0, h, self.p2 * h)
        h = self.m3(h.transpose(1, 2)).transpose(1, 2)
        return self.m4(F.softplus(h.mean(1)))
""",
    ),
    "an instance norm before a convolution in channels_last": Network(
        seed=20035,
        inputs={"x": (2, 4, 4)},
        examples=6,
        outputs=(2,),
        channels_last=True,
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.InstanceNorm2d(2, affine=True)
        self.m2 = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.m3 = nn.Linear(2, 2)

    def forward(self, x):
        return self.m3(torch.sin(self.m2(self.m1(x)).mean((2, 3))))
""",
    ),
    "one slope for all": Network(
        seed=747,
        inputs={"x": (2,)},
        examples=4,
        outputs=(2,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1, self.m2 = nn.PReLU(1), nn.Linear(2, 2)

    def forward(self, x):
        return self.m2(self.m1(x))
""",
    ),
    "outputs that cancel": Network(
        seed=4242753,
        inputs={"x": (1, 3, 3)},
        examples=5,
        outputs=(3,),
        source="""
class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return torch.sin(z)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * torch.cos(ctx.saved_tensors[0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(torch.zeros((1, 1, 1,)))
        self.m2 = nn.BatchNorm2d(1)
        self.p3 = nn.Parameter(torch.zeros((1, 3, 3,)))
        self.m4 = nn.Conv1d(1, 3, 3, padding=1)
        self.register_buffer("c5", torch.zeros(3, 3))
        self.m6 = nn.RMSNorm(3)
        self.m7 = nn.Linear(3, 2)
        self.m8 = nn.Linear(2, 2)
        self.p9 = nn.Parameter(torch.zeros((2, 3,)))

    def forward(self, x):
        h = x
        h = h * self.p1.exp()
        h = self.m2(h)
        h[:, :1].add_(self.p3)
        h = torch.relu(h)
        h = F.adaptive_avg_pool2d(h, (2, 2))
        h = h.flatten(2).transpose(1, 2)
        h = self.m4(h.transpose(1, 2)).transpose(1, 2)
        h = torch.cdist(h, self.c5)
        h = self.m6(h)
        h = Once.apply(self.m7(h))
        with torch.no_grad():
            gate = torch.sigmoid(self.m8(h))
        h = h * gate
        h = h @ self.p9
        h = h.logsumexp(1)
        h = h - h.mean(0)
        return h
""",
    ),
    "a branch without gradient whose rows are all equal": Network(
        seed=5152217,
        inputs={"x": (4, 4)},
        likelihood="classification",
        examples=5,
        outputs=(3,),
        source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(torch.zeros((1, 4, 4,)))
        self.p2 = nn.Parameter(torch.zeros((4,)))
        self.m3 = nn.Linear(4, 4)
        self.m4 = nn.Linear(16, 3)

    def forward(self, x):
        h = x
        h = h * self.p1
        pos = self.p2.repeat(h.shape[1], 1)
        pos = F.relu(pos, inplace=True)
        h = h * pos
        h = h * 0.7 + self.m3(h).detach()
        h = h.flatten(1)
        h = self.m4(torch.sigmoid(h))
        return h
""",
    ),
    "a weight behind units that are off for the first examples": Network(
        seed=88007309,
        inputs={"x": (2, 3, 4)},
        examples=6,
        outputs=(4, 1),
        source="""
class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return torch.sin(z)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * torch.cos(ctx.saved_tensors[0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m1 = nn.Linear(2, 3)
        self.p2 = nn.Parameter(torch.zeros((1, 3,)))
        self.p3 = nn.Parameter(torch.zeros((6, 3,)))
        self.m4 = nn.Linear(3, 1)

    def forward(self, x):
        h = x
        h = F.adaptive_avg_pool2d(h, (2, 2))
        h = h.flatten(2).transpose(1, 2)
        h = Once.apply(self.m1(h))
        h = torch.relu(h)
        h = h * 0.9
        h[:, :1] += self.p2
        h = F.linear(F.gelu(F.linear(h, self.p3[::2])), self.p3[1::2])
        h = self.m4(F.softplus(h))
        return h
""",
    ),
}
