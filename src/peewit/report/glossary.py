"""The words of the page: what each means, and for which task it is there."""

from __future__ import annotations

BOTH, CLASSES, NUMBERS = "both", "classification", "regression"

TERMS: dict[str, tuple[str, str]] = {
    "Calibrated": (
        "A network is calibrated if it is right as often as it says: of predictions made with 80 % "
        "confidence, 80 % are right.",
        BOTH,
    ),
    "Calibration error (ECE)": (
        "The average difference between confidence and accuracy, over bins of predictions that are about "
        "equally sure. It is never quite zero, since bins are finite.",
        CLASSES,
    ),
    "Confidence": (
        "The probability that a method gives to the class it predicts.",
        CLASSES,
    ),
    "Laplace approximation": (
        "A bell curve over the network's weights, centred at the trained ones and as wide as the training "
        "data leave them undetermined. Predictions are averaged over it.",
        BOTH,
    ),
    "NLL": (
        "Negative log-likelihood: the average surprise at the right answers. It punishes being wrong and "
        "sure. Lower is better.",
        BOTH,
    ),
    "Brier score": (
        "The squared distance between predicted probabilities and the right answer. Lower is better.",
        CLASSES,
    ),
    "AURC": (
        "Area under the risk-coverage curve: the error rate averaged over how many of the surest predictions "
        "are kept. Lower is better.",
        BOTH,
    ),
    "RMSE": (
        "Root mean squared error: the typical distance between prediction and target, in the target's units.",
        NUMBERS,
    ),
    "CRPS": (
        "Continuous ranked probability score: the distance between the predicted distribution and the target. "
        "Lower is better.",
        NUMBERS,
    ),
    "Interval": (
        "A range that should hold the target with a given probability. Coverage is the share of targets that "
        "it did hold.",
        NUMBERS,
    ),
    "PIT": (
        "Probability integral transform: the share of the predicted distribution below the target. For "
        "calibrated predictions all shares are equally frequent.",
        NUMBERS,
    ),
    "Entropy": (
        "How spread a prediction is over the classes: zero where one class has all the probability.",
        CLASSES,
    ),
    "Epistemic uncertainty": (
        "What more training data could remove: it comes from not knowing the weights. Mutual information and "
        "epistemic variance measure it.",
        BOTH,
    ),
    "Aleatoric uncertainty": (
        "What no data could remove: noise, or classes that look alike.",
        BOTH,
    ),
    "AUROC": (
        "In pairs of a known and an unknown input, how often the unknown one looks more uncertain: 50 % is "
        "chance, 100 % perfect.",
        BOTH,
    ),
    "FPR95": (
        "The share of known inputs that would raise a false alarm if 95 % of the unknown ones are to be noticed.",
        BOTH,
    ),
    "95 % interval": (
        "Where 95 % of the values lie if test inputs are drawn anew from those there are (bootstrap). Two methods "
        "differ by more than chance explains where the interval of their difference, on the same drawn inputs, leaves "
        "out 0; their own intervals may overlap all the same.",
        BOTH,
    ),
    "Temperature scaling": (
        "All outputs divided by one number, chosen on validation data: the simplest way to correct confidence.",
        CLASSES,
    ),
    "Prior precision": (
        "How strongly weights are held near zero before the data speak, as 1 / variance.",
        BOTH,
    ),
    "Effective dimensions": (
        "How many weights the data determine, rather than the prior.",
        BOTH,
    ),
    "Log evidence": (
        "The log probability of the training data under network and prior, averaged over all weights. It "
        "weighs fit against complexity, and is used to choose the prior.",
        BOTH,
    ),
}
