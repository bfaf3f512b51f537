"""What all predictions have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..likelihoods import Form, Labelled, Likelihood
from ..messages.arguments import check_generator
from ..messages.errors import ArgumentTypeError, MissingPackageError, PeewitError
from ..messages.names import nearest
from ..network.arrays import as_tensors
from .lazy_values import isolate
from .outputs import Belief, GaussianOutputs

LinkName: TypeAlias = Literal["probit", "bridge", "bridge_normalised", "exact", "natural", "mean", "mc"]
"""How outputs become labels. Each likelihood has some of them, the first of which is its default."""

SHOWN = 3  # inputs that a repr shows


def check_level(level: float) -> float:
    """A probability strictly between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise PeewitError(f"level={level!r} was given; expected a number between 0 and 1, such as 0.9.")
    return float(level)


def uniforms(shape: torch.Size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1) in float64 on the device of `like`, from a generator on any device."""
    check_generator(generator)
    device = like.device if generator is None else generator.device
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=device).to(like.device)


def format_values(values: Tensor) -> str:
    """A few numbers in brackets."""
    flat = values.detach().flatten().tolist()
    words = [f"{value:.3g}" for value in flat[:4]] + (["..."] if len(flat) > 4 else [])
    return f"[{', '.join(words)}]" if values.dim() else words[0]


@isolate
@dataclass(frozen=True, eq=False, repr=False)
class Prediction(ABC):
    """What is predicted for N inputs; all tensors are shaped like the network's outputs (N, ...).

    `la.predict(x)` returns it, and `len(prediction)` is N. It is one of five classes, by the likelihood:

    - `pw.Categorical`: `pw.Classes`;
    - `pw.Bernoulli`: `pw.Binary`;
    - `pw.Preference`: `pw.Binary` for pairs, `pw.Outputs` for single inputs;
    - `pw.Gaussian`: `pw.Regression`; with `link="mc"` or `method="sampled"`, `pw.Mixture`;
    - `pw.HeteroscedasticGaussian`: `pw.Mixture`; with `link="natural"` or `link="mean"`, `pw.Regression`;
    - `pw.Poisson`: `pw.Mixture`;
    - `pw.Custom`: `pw.Mixture`; without `predictive`, `pw.Outputs`.

    All of them have `epistemic`, the uncertainty that comes from not knowing the weights, and all but `pw.Outputs` have
    `aleatoric`, the uncertainty that would be left if the weights were known. Labels have both in nats, and they add up
    to `entropy`. Numbers have both as variances, and they add up to `variance`.

    Type checkers let a `Prediction` have what any of the five classes has, such as `pred.probs` and `pred.mean`. After
    `assert isinstance(pred, pw.Classes)` they know what this class has, and what it has not.

    Attributes:
        belief: Distribution of the network's outputs, from which all else is computed.
        likelihood: The likelihood of the posterior.
        link: How outputs became labels, such as "probit".
        epistemic: Uncertainty from not knowing the weights: in nats for labels, a variance for numbers.
        output_mean: Mean of the network's outputs (N, ...).
        output_variance: Variance of the network's outputs (N, ...), from not knowing the weights.
        covariance: Covariance of the network's outputs (N, *positions, C, C); (N, F, N, F) over all inputs and their F
            flattened outputs with `joint=True`.

    Example:
        >>> pred = la.predict(x[:5])
        >>> isinstance(pred, pw.Prediction), type(pred).__name__, len(pred)
        (True, 'Classes', 5)
        >>> pred.output_mean.shape, pred.covariance.shape
        (torch.Size([5, 3]), torch.Size([5, 3, 3]))
    """

    belief: Belief
    likelihood: Likelihood
    link: LinkName

    # Labels: subclasses inherit these docstrings

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """Compute the log probability (density) of targets, noise included, summed over labelled positions.

        For soft targets of `pw.Classes` it is the negative cross entropy. `pw.Binary` scores each label on its own.
        `pw.Regression` scores the outputs of a position together, and so does `pw.Mixture` unless they are independent.

        Args:
            y: Targets, as the network was trained on: one per input. They are never broadcast. Ignored labels are left
                out.

        Returns:
            Log probabilities or densities (N,), in nats.

        Raises:
            PeewitError: The targets do not fit the outputs.
            ArgumentTypeError: `y` is not a tensor.

        Example:
            >>> la.predict(x).log_prob(y).shape, line.predict(t).log_prob(z).shape
            (torch.Size([60]), torch.Size([40]))
        """

    @abstractmethod
    def interval(self, level: float = 0.9) -> Any:  # tensor or pair: each class says which
        """Find what holds a new observation with probability `level`.

        Args:
            level: A probability strictly between 0 and 1.

        Returns:
            For labels, the smallest set that reaches `level`, as booleans: (N, ...) on the class axis of `pw.Classes`;
            (N, ..., 2) for `pw.Binary`, whether zero is in the set, and whether one is. For numbers, the lower and the
            upper ends of the central interval, noise included, (N, ...) each; for `pw.Mixture` they are quantiles.

        Raises:
            PeewitError: `level` is not between 0 and 1, or `pw.Mixture` has a likelihood whose distribution function
                torch does not know.

        Example:
            >>> la.predict(x).interval(0.9).shape
            torch.Size([60, 3])
            >>> lower, upper = line.predict(t).interval(0.9)
            >>> lower.shape, bool((lower < upper).all())
            (torch.Size([40, 1]), True)
        """

    @abstractmethod
    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw new observations at all inputs, noise included.

        With `joint=True` or `method="sampled"` each draw belongs to one function at all inputs.

        Args:
            samples: Number S of draws.
            generator: Source of random numbers. None for torch's global generator.

        Returns:
            Observations (S, N, ...): class numbers (S, N, *positions) for `pw.Classes`, zeros and ones for `pw.Binary`,
            else numbers.

        Raises:
            PeewitError: `samples` is not a positive whole number.
            ArgumentTypeError: `generator` is not a torch.Generator.

        Example:
            >>> la.predict(x).sample(10).shape, line.predict(t).sample(10).shape
            (torch.Size([10, 60]), torch.Size([10, 40, 1]))
        """

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """The uncertainty that comes from not knowing the weights, in nats or as a variance."""

    if TYPE_CHECKING:  # what some of the classes have: a question to the wrong one is answered by __getattr__

        @property
        def probs(self) -> Tensor: ...
        @property
        def mode(self) -> Tensor: ...
        @property
        def argmax(self) -> Tensor: ...
        @property
        def entropy(self) -> Tensor: ...
        @property
        def aleatoric(self) -> Tensor: ...
        @property
        def mean(self) -> Tensor: ...
        @property
        def variance(self) -> Tensor: ...
        @property
        def std(self) -> Tensor: ...
        def joint_log_prob(self, y: Tensor) -> Tensor: ...

    # Outputs of the network

    @property
    def output_mean(self) -> Tensor:
        """(N, ...): the mean of the network's outputs."""
        return self.belief.form.restore(self.belief.mean)

    @property
    def output_variance(self) -> Tensor:
        """(N, ...): the variance of the network's outputs, from not knowing the weights."""
        return self.belief.form.restore(self.belief.variance)

    @property
    def covariance(self) -> Tensor:
        """Of the network's outputs: (N, *positions, C, C), or (N, F, N, F) over all inputs with `joint=True`."""
        if isinstance(self.belief, GaussianOutputs) and self.belief.joint is not None:
            return self.belief.joint
        form, cov = self.belief.form, self.belief.covariance
        positions = () if form.axis is None else form.shape[: form.axis] + form.shape[form.axis + 1 :]
        return cov.reshape(cov.shape[0], *positions, *cov.shape[-2:])

    # In other libraries' words

    def numpy(self, level: float = 0.9) -> dict[str, NDArray[Any]]:
        """Give everything there is to say about the inputs as numpy arrays, by name.

        Args:
            level: The probability of the intervals of numbers, strictly between 0 and 1.

        Returns:
            Arrays (N, ...) on the CPU: for labels "predicted", "probs", "entropy", "epistemic" and "aleatoric"; for
            numbers "mean", "std", "lower", "upper", "epistemic" and "aleatoric", of which `pw.Outputs` has "mean",
            "std" and "epistemic".

        Raises:
            PeewitError: `level` is not between 0 and 1, or `pw.Mixture` has a likelihood whose distribution function
                torch does not know.

        Example:
            >>> arrays = line.predict(t).numpy()
            >>> arrays["mean"].shape, bool((arrays["lower"] < arrays["upper"]).all())
            ((40, 1), True)
        """
        columns = self._columns(check_level(level))
        return {name: tensor.detach().cpu().numpy() for name, tensor in columns.items()}

    def to_pandas(self, level: float = 0.9, index: Any = None) -> Any:
        """Give one row per input, as a data frame of pandas; polars takes it by `polars.from_pandas`.

        Args:
            level: As in `numpy`.
            index: Labels of the rows, such as `x.index` of the frame that was predicted. None for 0 to N - 1.

        Returns:
            A `pandas.DataFrame` with the columns that `numpy` names; several outputs are numbered, such as "mean_0",
            and so are the probabilities of classes, "probs_0".

        Raises:
            PeewitError: The outputs have positions (pixels, tokens), which rows cannot hold, or as for `numpy`.
            MissingPackageError: pandas is not installed.

        Example:
            >>> list(line.predict(t).to_pandas().columns)
            ['mean', 'std', 'lower', 'upper', 'epistemic', 'aleatoric']
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingPackageError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        cells: dict[str, Any] = {}
        for name, array in self.numpy(level).items():
            if array.ndim > 2:
                raise PeewitError(
                    f"{name} has shape {array.shape}: outputs have positions (pixels, tokens), which rows cannot hold; "
                    "use .numpy()."
                )
            flat = array.reshape(len(array), -1)
            numbered = [f"{name}_{number}" for number in range(flat.shape[1])]
            cells |= dict(zip([name] if flat.shape[1] == 1 else numbered, flat.T, strict=True))
        return pandas.DataFrame(cells, index=index)

    @abstractmethod
    def _columns(self, level: float) -> dict[str, Tensor]:
        """What `numpy` names."""

    def __len__(self) -> int:
        """N."""
        return int(self.belief.mean.shape[0])

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        """Refuse to be one array: numpy would make an object of it, silently."""
        main = "probs" if hasattr(type(self), "probs") else "mean"
        raise ArgumentTypeError(
            f"A {type(self).__name__} is several arrays, and was to become one; expected one of them by its name: "
            f"pred.numpy()[{main!r}], or the tensor pred.{main}."
        )

    if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

        def __getattr__(self, name: str) -> Any:
            """Say what there is: regression has moments, classification has probabilities."""
            if not name.startswith("_"):
                known = [each for each in dir(type(self)) if not each.startswith("_")]
                near = nearest(name, known, cutoff=0.75)
                text = f"{near}It has" if near else "it has"
                raise AttributeError(f"A {type(self).__name__} has no {name!r}; {text} {', '.join(known)}.")
            raise AttributeError(name)

    def _targets(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Targets in flat form, (N, T) or (N, T, C), and which positions count, (N, T, 1)."""
        y = as_tensors(y, "y")
        if not isinstance(y, Tensor):
            raise ArgumentTypeError(f"y is a {type(y).__name__}; expected a tensor or an array of targets.")
        if y.dim() == 0 or y.shape[0] != len(self):
            raise PeewitError(f"y has shape {tuple(y.shape)} for predictions at {len(self)} inputs; expected one each.")
        y = y.clone() if y.is_inference() else y
        y = y.to(self.belief.mean.device)
        labels = Labelled.of(self.likelihood, self.output_mean.detach(), y, self.belief.form).check(numbered=False)
        return labels.y, labels.likelihood.labelled(labels.y)[..., None]

    @abstractmethod
    def _lines(self) -> list[str]:
        """What a repr says of the values."""

    def __repr__(self) -> str:
        """A few lines: how many inputs, the first values, the mean uncertainty."""
        examples = "1 input" if len(self) == 1 else f"{len(self):,} inputs"
        way = self.link if isinstance(self.belief, GaussianOutputs) else f"{self.belief.number} draws of the weights"
        head = f"{type(self).__name__} for {examples} ({way})"
        return "\n  ".join([head, *self._lines()])


def jointly(belief: Belief) -> bool:
    """Whether draws of the outputs belong together over inputs."""
    return not isinstance(belief, GaussianOutputs) or belief.joint is not None


def target_form(form: Form, outputs: int) -> Form:
    """The form of targets with another number of outputs: a head with two parameters has half as many."""
    if form.axis is None or form.outputs == outputs:
        return form
    shape = (*form.shape[: form.axis], outputs, *form.shape[form.axis + 1 :])
    return Form(form.axis, shape)


def normal_quantile(level: float) -> float:
    """`z` with probability `level` between -z and z."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64, device="cpu")))
