"""Which of two inputs is preferred: reward models, by Bradley and Terry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..messages.errors import PeewitError
from ..messages.names import spelled_class
from ..network.nests import Pair
from .bernoulli import Bernoulli
from .comparison import ConstantComparison, Energies, compare_labels
from .contract import Likelihood
from .form import Form, usual_axis


@spelled_class
@dataclass(frozen=True)
class Preference(Bernoulli):
    """Which of two inputs is preferred: `p(first) = sigmoid(reward(first) - reward(second))`, by Bradley and Terry.

    `pw.fit(..., "preference")` takes it, for a network with one output, the reward of an input, and data of pairs: see
    `pw.Pair`. The loss is `-logsigmoid(reward(chosen) - reward(rejected))`, summed. `la.predict` of a pair has the
    probability that the first is preferred; of single inputs, their rewards with variances.

    Pairs tell differences of rewards alone. What is added to all rewards, such as a bias of the last layer, keeps its
    prior variance, and that shows in the variance of a single reward. Kronecker factors take the two inputs of a pair
    for independent; the last layer with `structure="full"` is exact.

    Args:
        ignore_index: Outcomes with this value are missing. None: none are.

    Raises:
        PeewitError: By `pw.fit`, where the data holds no pairs, the network has more than one output, or an outcome is
            not between 0 and 1.

    Example:
        >>> reward = torch.nn.Linear(2, 1, bias=False)
        >>> la = pw.fit(reward, pw.Pair(x[:30], x[30:]), "preference")
        >>> type(la.predict(pw.Pair(x[:5], x[5:10]))).__name__, type(la.predict(x[:5])).__name__
        ('Binary', 'Outputs')
    """

    title = "preference"
    constant = 0.0  # the difference of equal rewards

    def check_inputs(self, inputs: Any) -> Any:
        # Pairs; refuses single inputs.
        if not isinstance(inputs, Pair):
            raise PeewitError(
                f"preference: a batch has inputs that are a {type(inputs).__name__}; expected pairs: "
                "pw.Pair(chosen, rejected), (pw.Pair(first, second), y), or a mapping with '..._chosen' and "
                "'..._rejected'."
            )
        return inputs

    def for_inputs(self, inputs: Any) -> Likelihood:
        # Single inputs have a reward, and no outcome.
        return self if isinstance(inputs, Pair) else Reward(self.ignore_index)

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        # One reward per input, and one outcome per pair.
        if f[0].numel() != 1 or y.numel() != len(f):
            raise PeewitError(
                f"preference: the network's output has shape {tuple(f.shape)} and the outcomes {tuple(y.shape)}; "
                "expected one reward per input, (N, 1) or (N,), and one outcome per pair, (N,)."
            )
        return Form(usual_axis(f.dim()), tuple(f.shape[1:]))

    def targets(self, y: Tensor, form: Form) -> Tensor:
        return super().targets(y.reshape(len(y), *form.shape), form)

    def beside_constant(self, f: Tensor, y: Tensor, energies: Energies, where: str) -> ConstantComparison:
        """By NLL and accuracy, against rewards that do not depend on the input."""
        number, accuracy = float(self.scalars(y)), self.decisions(f, y).accuracy
        per_pair = Energies(*(energy / number for energy in energies))
        return compare_labels(per_pair, (accuracy, 0.5), where, rival="same reward for all inputs")


class Reward(Preference):
    """The reward of a single input: an output that nothing is observed of."""

    link_family = "other"

    def distribution(self, f: Tensor) -> None:  # type: ignore[override]  # none is known
        """Nothing."""
        return None
