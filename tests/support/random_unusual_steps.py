"""Odd steps of random networks: distances, spectra, derivatives inside, weights that are reached otherwise."""

from __future__ import annotations

from random_grammar import Sketch, rule


@rule("vec seq", "cdist to a buffer", "cdist to weights", "cdist with p = 1", filler=False)
def distances(s: Sketch) -> None:
    """Distances to prototypes."""
    count = s.size(2, 4)
    option = s.pick("cdist to a buffer", "cdist to weights", "cdist with p = 1")
    points = s.buffer(count, s.width) if option == "cdist to a buffer" else s.parameter(count, s.width)
    s.add(f"h = torch.cdist(h, {points}{', p=1.0' if option == 'cdist with p = 1' else ''})")
    s.last(count)
    s.fresh = False


@rule("vec seq", "complex gain", "real gain of a spectrum", "complex from two weights", fits=lambda s: s.width > 1)
def spectrum(s: Sketch) -> None:
    """A filter in the frequencies of the last axis."""
    width = s.width
    count = width // 2 + 1
    option = s.pick("complex gain", "real gain of a spectrum", "complex from two weights")
    if option == "complex gain":
        gain = f"torch.view_as_complex({s.parameter(count, 2)}.contiguous())"
    elif option == "real gain of a spectrum":
        gain = s.parameter(count, prefix="gain")
    else:
        gain = f"torch.complex({s.parameter(count)}, {s.parameter(count)})"
    s.add(f"h = torch.fft.irfft(torch.fft.rfft(h) * {gain}, n={width})")
    s.fresh = True


DERIVATIVES = ("autograd.grad inside", "energy and its gradient", "func.grad inside", "vmap inside", "jvp inside")


@rule("vec", *DERIVATIVES, filler=False)
def derivatives(s: Sketch) -> None:
    """Derivatives and transforms inside the forward pass."""
    width, inner = s.width, s.size(2, 3)
    option = s.pick(*DERIVATIVES)
    if option == "vmap inside":
        s.add(f"h = torch.func.vmap({s.linear(width, inner)})(h)")
        s.last(inner)
        s.fresh = True
        return
    if option == "jvp inside":
        layer = s.linear(width, width)
        s.add(
            f"h, slope = torch.func.jvp(lambda z: torch.tanh({layer}(z)), (h,), (torch.ones_like(h),))",
            "h = h + slope",
        )
        s.fresh = True
        return
    one, two = s.linear(width, inner), s.linear(inner, 1)
    if option == "func.grad inside":
        s.add(f"h = torch.func.vmap(torch.func.grad(lambda z: {two}(torch.tanh({one}(z))).sum()))(h)")
        s.fresh = True
        return
    s.add(
        "with torch.enable_grad():",
        "    q = h if h.requires_grad else h.detach().requires_grad_()",
        f"    energy = {two}(torch.tanh({one}(q)))",
        "    h = torch.autograd.grad(energy.sum(), q, create_graph=True)[0]",
    )
    if option == "energy and its gradient":
        s.add("h = torch.cat([energy, h], 1)")
        s.last(width + 1)
    s.fresh = False


ONCE = """class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return torch.sin(z)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * torch.cos(ctx.saved_tensors[0])
"""
PRODUCT = """class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return z @ w

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        return g @ w.T, z.reshape(-1, z.shape[-1]).T @ g.reshape(-1, g.shape[-1])
"""
REACHED = ("saved reference", "once differentiable", "own function", "weight norm", "checkpoint")


@rule("vec seq", *REACHED)
def reached_otherwise(s: Sketch) -> None:
    """A weight that is applied by something other than a plain call."""
    width, outputs = s.width, s.size(2, 3)
    option = s.pick(*REACHED)
    if option == "saved reference":
        layer = s.linear(width, outputs)
        s.names += 1
        s.made.append(f"self.saved{s.names} = [{layer}.weight, {layer}.bias]")
        s.add(f"h = F.linear(h, *self.saved{s.names})")
    elif option == "once differentiable":
        s.helpers.append(ONCE)
        s.add(f"h = Once.apply({s.linear(width, outputs)}(h))")
    elif option == "own function":
        s.helpers.append(PRODUCT)
        s.add(f"h = Product.apply(h, {s.parameter(width, outputs)})")
    elif option == "weight norm":
        layer = s.module(
            f"nn.utils.parametrizations.weight_norm(nn.Linear({width}, {outputs}))", width * outputs + 2 * outputs
        )
        s.add(f"h = {layer}(h)")
    else:
        layer = s.linear(width, outputs)
        s.add(f"h = torch.utils.checkpoint.checkpoint({layer}, h, use_reentrant=False)")
    s.last(outputs)
    s.fresh = option not in ("once differentiable",)


@rule("vec seq", "unused layer", "detached branch", "branch without gradient", "frozen weight")
def without_gradient(s: Sketch) -> None:
    """Weights that no output depends on, or none that can be learnt."""
    width = s.width
    option = s.pick("unused layer", "detached branch", "branch without gradient", "frozen weight")
    layer = s.linear(width, width)
    if option == "detached branch":
        s.add(f"h = h * 0.7 + {layer}(h).detach()")
        s.fresh = True
    elif option == "branch without gradient":
        s.add("with torch.no_grad():", f"    gate = torch.sigmoid({layer}(h))", "h = h * gate")
        s.fresh = False
    elif option == "frozen weight":
        s.made.append(f"{layer}.weight.requires_grad_(False)")
        s.add(f"h = {layer}(h)")
        s.fresh = True


@rule("vec", "examples meet in their mean", "examples meet in detached statistics", filler=False)
def coupled(s: Sketch) -> None:
    """Examples that depend on each other: to be refused."""
    option = s.pick("examples meet in their mean", "examples meet in detached statistics")
    s.add(
        "h = h - h.mean(0)" if option == "examples meet in their mean" else "h = h / (1 + h.detach().square().mean(0))"
    )
    s.fresh = False
