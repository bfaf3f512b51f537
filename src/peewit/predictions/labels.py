"""What predictions of labels have in common: probabilities, and an entropy in two parts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from .lazy_values import isolate
from .prediction import Prediction


@isolate
@dataclass(frozen=True, eq=False, repr=False)
class Labels(Prediction):
    """Predictions with probabilities, and an entropy in two parts, in nats; abstract."""

    @property
    @abstractmethod
    def probs(self) -> Tensor:
        """Probabilities of the labels."""

    @property
    @abstractmethod
    def mode(self) -> Tensor:
        """The likeliest labels."""

    @property
    @abstractmethod
    def _entropies(self) -> Tensor:
        """(2, ...): total and expected entropy, in flat form."""

    @abstractmethod
    def _restore(self, flat: Tensor) -> Tensor:
        """Numbers of each label, in the shape of the targets."""

    def _columns(self, level: float) -> dict[str, Tensor]:
        names = ("mode", "probs", "entropy", "epistemic", "aleatoric")
        return {"predicted" if name == "mode" else name: getattr(self, name) for name in names}

    @property
    def entropy(self) -> Tensor:
        """In the targets' shape: of each label, in nats; `aleatoric + epistemic`."""
        return self._restore(self._entropies[0])

    @property
    def aleatoric(self) -> Tensor:
        """In the targets' shape: the entropy that would be left if the weights were known, on average."""
        return self._restore(self._entropies[1])

    @property
    def epistemic(self) -> Tensor:
        """In the targets' shape: what each label would tell about the weights, their mutual information."""
        return self._restore((self._entropies[0] - self._entropies[1]).clamp(min=0))
