"""The loss around the trained weights of an MLP with BatchNorm, beside the loss of its linear model.

    python examples/evidence/landscape.py [--out DIR]

Both are drawn over one plane, through the trained weights theta_hat, the linear mode theta_lin, and theta_hat with its
normalised weights scaled. Scaling does not change the network's loss, since BatchNorm removes the scale. So only the
prior acts on it, which pulls the weights to zero, and theta_hat is not a mode. The linear model's loss is convex and
has a mode. The script writes landscape.png and, with plotly, landscape.html with surfaces to turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import BLUE, CONSOLE, GREEN, ORANGE, options, train
from readers import Pair
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F

import peewit as pw
from peewit.figures import save, style

LEVELS = (1.0, 2.0)  # standard deviations


@dataclass(frozen=True)
class Plane:
    """A plane in the space of all weights, `centre + first * a + second * b`, and the three points in it."""

    centre: Tensor  # (D,): theta_hat
    axes: Tensor  # (2, D), orthonormal
    mode: tuple[float, float]  # theta_lin
    shape: Tensor  # (2, 2): the posterior precision in the plane


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """Regularised losses of the network and of the linear model over a grid."""

    a: Tensor
    b: Tensor
    network: Tensor  # (len(b), len(a))
    linear: Tensor
    plane: Plane


def moons(count: int, seed: int) -> Pair:
    """Two half circles with noise."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.pi * torch.rand(count, generator=generator)
    y = torch.arange(count) % 2
    side = 1.0 - 2.0 * y
    x = torch.stack([side * angle.cos() + y, side * angle.sin() + 0.5 * y], 1)
    return x + 0.25 * torch.randn(count, 2, generator=generator), y


def network(width: int) -> nn.Sequential:
    """Two hidden layers, each with BatchNorm."""
    layers: list[nn.Module] = []
    for inputs in (2, width):
        # Exact statistics of all data: the mean over all batches, not a moving average.
        layers += [nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width, momentum=None), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def settle(model: nn.Module, x: Tensor) -> None:
    """Set the running statistics to those of all data, so that evaluation and training give the same outputs."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    model.train()
    with torch.no_grad():
        model(x)
    # The running variance divides by n - 1, batch statistics by n.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d) and module.running_var is not None:
            module.running_var *= (len(x) - 1) / len(x)
    model.eval()


def normalised(model: nn.Module) -> Tensor:
    """(D,): the trained weights before a BatchNorm, zero elsewhere."""
    kept = ("0.weight", "3.weight")
    parts = [tensor.detach() * (name in kept) for name, tensor in model.named_parameters()]
    return torch.cat([part.flatten() for part in parts])


def through(model: nn.Module, la: pw.Laplace) -> Plane:
    """The plane through theta_hat, theta_lin and theta_hat with its normalised weights scaled."""
    step = la.linear_mode.displacement.double()
    first = step / step.norm()
    second = normalised(model).to(first)
    second = second - (second @ first) * first
    axes = torch.stack([first, second / second.norm()])
    shape = torch.stack([axes @ la.precision.mv(axis.to(la.weights)).double().flatten() for axis in axes])
    return Plane(la.weights.double(), axes, (float(step.norm()), 0.0), shape)


def landscape(model: nn.Module, la: pw.Laplace, pair: Pair, count: int) -> Landscape:
    """Both losses on a grid around the points and the contours."""
    x, y = pair[0].double(), pair[1]
    plane = through(model, la)
    deviations = torch.linalg.inv(plane.shape).diagonal().sqrt()
    reach = torch.tensor([0.75 * plane.mode[0], 0.0]) + 1.3 * LEVELS[-1] * deviations
    radius = max(float(reach[1]), float(reach[0]))
    a = torch.linspace(-radius + plane.mode[0] / 2, radius + plane.mode[0] / 2, count, dtype=torch.float64)
    b = torch.linspace(-radius, radius, count, dtype=torch.float64)
    delta = la.prior.delta(la.space, la.weights).double()
    double = {name: tensor.detach().double() for name, tensor in model.named_parameters()}
    buffers = {n: t.double() if t.is_floating_point() else t for n, t in model.named_buffers()}

    def split(flat: Tensor) -> dict[str, Tensor]:
        sizes = [tensor.numel() for tensor in double.values()]
        return {n: f.view_as(t) for (n, t), f in zip(double.items(), flat.split(sizes), strict=True)}

    def outputs(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(model, (weights, buffers), (x,))

    slopes = [jvp(outputs, (double,), (split(axis),))[1] for axis in plane.axes]
    with torch.no_grad():
        base = outputs(double)
        model.train()  # the training loss, with the statistics of the batch, which is all data
        own, linear = [], []
        for q in b:
            for p in a:
                weights = plane.centre + p * plane.axes[0] + q * plane.axes[1]
                penalty = 0.5 * (delta * weights.square()).sum()
                f = functional_call(model, (split(weights), copies(buffers)), (x,))
                own.append(F.cross_entropy(f, y, reduction="sum") + penalty)
                linear.append(F.cross_entropy(base + p * slopes[0] + q * slopes[1], y, reduction="sum") + penalty)
        model.eval()
    shape = (len(b), len(a))
    return Landscape(
        a=a, b=b, network=torch.stack(own).view(shape), linear=torch.stack(linear).view(shape), plane=plane
    )


def copies(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the buffers, which a forward pass may write to."""
    return {name: tensor.clone() for name, tensor in buffers.items()}


def ellipse(plane: Plane, level: float, centre: tuple[float, float]) -> Tensor:
    """(2, 100): the ellipse of the posterior in the plane at a number of standard deviations."""
    angle = torch.linspace(0, 2 * torch.pi, 100, dtype=torch.float64)
    root = torch.linalg.cholesky(torch.linalg.inv(plane.shape))
    return level * root @ torch.stack([angle.cos(), angle.sin()]) + torch.tensor(centre, dtype=torch.float64)[:, None]


def draw(made: Landscape, path: Path) -> None:
    """Two panels of contours."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        CONSOLE.print("No picture was made: pip install matplotlib.")
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.3), layout="constrained", dpi=100)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    least = float(torch.minimum(made.network, made.linear).min())
    levels = (least + torch.cat([torch.zeros(1), torch.logspace(0.0, 3.0, 19)])).numpy()
    for panel, values, title in zip(panels, (made.network, made.linear), titles(), strict=True):
        shaded = panel.contourf(
            made.a, made.b, values.clamp(least + 1e-3, float(levels[-1])), levels=levels, cmap="Greys_r", norm="log"
        )
        panel.contour(made.a, made.b, values, levels=levels, colors="black", linewidths=0.4)
        marks(panel, made.plane, at_mode=values is made.linear)
        panel.set_title(title, fontsize=11)
        panel.set_xlabel(r"from $\tilde\theta$ to $\theta^*$")
        panel.set_aspect("equal")
    panels[0].set_ylabel("scale of the normalised weights")
    panels[1].legend(loc="lower right", fontsize=9)
    figure.colorbar(shaded, ax=panels, shrink=0.8, label="loss with regularisation", format="%.0f", ticks=levels[7::3])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    CONSOLE.print(f"Figure: {path}", highlight=False)


def titles() -> tuple[str, str]:
    """Titles of the panels."""
    return "the network's loss", "the linear model's loss"


def marks(panel: Any, plane: Plane, at_mode: bool) -> None:
    """Draw the points, and the Gaussian around the mode of the loss that is shown."""
    centre = plane.mode if at_mode else (0.0, 0.0)
    for level in LEVELS:
        x, y = ellipse(plane, level, centre)
        label = "the Gaussian, 1 and 2 deviations" if level == LEVELS[0] else None
        panel.plot(x, y, color=GREEN, lw=1.6, ls="-" if level == 1 else "--", label=label)
    panel.plot(0, 0, "o", color=ORANGE, ms=9, mec="white", label=r"$\tilde\theta$, trained")
    panel.plot(*plane.mode, "*", color=BLUE, ms=14, mec="white", label=r"$\theta^*$, the linear model's mode")


def interactive(made: Landscape, path: Path) -> None:
    """Both losses as surfaces that readers can turn."""
    try:
        graph_objects = style.graph_objects()
    except ImportError as error:
        CONSOLE.print(f"No interactive figure was made: {error}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = style.panels(1, 2, specs=[[{"type": "surface"}] * 2], subplot_titles=titles())
    top = float(made.network.max())  # the linear model's loss rises far above it
    low = float(torch.minimum(made.network, made.linear).min())
    for column, values in enumerate((made.network, made.linear), 1):
        shown = torch.where(values <= top, values, torch.nan)
        surface = graph_objects.Surface(
            x=made.a.numpy(),
            y=made.b.numpy(),
            z=shown.numpy(),
            cmin=low,
            cmax=top,
            colorscale=style.SEQUENTIAL,
            opacity=0.85,  # so that the back of a ridge shows
            showscale=column == 2,
        )
        figure.add_trace(surface, 1, column)
        for trace in points(
            made, values + 0.01 * (top - low), column == 2
        ):  # slightly above the surface, which would hide them
            figure.add_trace(trace, 1, column)
    axes = style.scene("theta_hat to theta_lin", "scale", "loss")
    alt = "The network's loss and the linear model's over one plane: the second is convex and has a mode of its own."
    style.finish(figure, "The loss around the trained weights", alt, height=560)
    axes["camera"] = {"eye": {"x": 1.2, "y": -1.5, "z": 2.0}}  # from above: the points are in valleys
    figure.update_layout(scene=axes, scene2=axes, margin={"t": 90})
    save(figure, path)
    CONSOLE.print(f"Figure: {path}", highlight=False)


def points(made: Landscape, values: Tensor, at_mode: bool) -> list[Any]:
    """Traces of the points and the Gaussian, on the surface."""
    graph_objects = style.graph_objects()

    def height(x: Tensor, y: Tensor) -> Tensor:
        columns = torch.bucketize(x.clamp(made.a[0], made.a[-1]).contiguous(), made.a).clamp(max=len(made.a) - 1)
        rows = torch.bucketize(y.clamp(made.b[0], made.b[-1]).contiguous(), made.b).clamp(max=len(made.b) - 1)
        return values[rows, columns]

    plane, traces = made.plane, []
    for level in LEVELS:
        x, y = ellipse(plane, level, plane.mode if at_mode else (0.0, 0.0))
        look = {
            "mode": "lines",
            "line": {"color": GREEN, "width": 6},
            "name": f"Gaussian, {level:g} {'deviation' if level == 1 else 'deviations'}",
        }
        traces.append(
            graph_objects.Scatter3d(x=x.numpy(), y=y.numpy(), z=height(x, y).numpy(), showlegend=at_mode, **look)
        )
    for name, colour, (p, q) in (("theta_hat", ORANGE, (0.0, 0.0)), ("theta_lin", BLUE, plane.mode)):
        x, y = torch.tensor([p], dtype=torch.float64), torch.tensor([q], dtype=torch.float64)
        look = {"mode": "markers", "marker": {"color": colour, "size": 6}, "name": name}
        traces.append(
            graph_objects.Scatter3d(x=x.numpy(), y=y.numpy(), z=height(x, y).numpy(), showlegend=at_mode, **look)
        )
    return traces


def main(arguments: list[str] | None = None) -> Landscape:
    """Train, find the mode, draw."""
    asked = options(__doc__).parse_args(arguments)
    torch.manual_seed(asked.seed)
    pair = moons(60 if asked.quick else 200, asked.seed)
    model = network(8 if asked.quick else 20)
    train(model, pair, F.cross_entropy, epochs=20 if asked.quick else 100, batch=len(pair[0]), rate=1e-2)
    settle(model, pair[0])
    la = pw.fit(model, pair, "classification", structure="full")
    la = la.tune(at="linear_mode", train=pair, tolerance=0.05)
    made = landscape(model, la, pair, 11 if asked.quick else 61)
    draw(made, asked.out / "landscape.png")
    interactive(made, asked.out / "landscape.html")
    return made


if __name__ == "__main__":
    main()
