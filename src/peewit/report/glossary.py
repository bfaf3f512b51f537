"""The glossary: what each word of the report means, and which tasks show it; and words of the documentation alone."""

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
    "Confidence": ("The probability that a method gives to the class it predicts.", CLASSES),
    "Laplace approximation": (
        "A Gaussian distribution over the network's weights, centred at the trained ones. It is wide where the "
        "training data say little. Predictions are averaged over it.",
        BOTH,
    ),
    "NLL": (
        "Negative log-likelihood: the average surprise at the right answers. It punishes confident mistakes. "
        "Lower is better.",
        BOTH,
    ),
    "Brier score": (
        "The squared distance between predicted probabilities and the right answer. Lower is better.",
        CLASSES,
    ),
    "AURC": (
        "Area under the risk-coverage curve: the error rate of the surest predictions, averaged over the share "
        "that is kept. Lower is better.",
        BOTH,
    ),
    "RMSE": (
        "Root mean squared error: the typical distance between prediction and target, in the target's units.",
        NUMBERS,
    ),
    "R²": (
        "The share of the targets' variance that predictions explain: 1 is perfect, and always predicting the mean "
        "has 0.",
        NUMBERS,
    ),
    "Sharpness": (
        "The mean predicted standard deviation. Of two methods whose intervals hold enough targets, the sharper one "
        "is better.",
        NUMBERS,
    ),
    "CRPS": (
        "Continuous ranked probability score: the distance between the predicted distribution and the target. "
        "Lower is better.",
        NUMBERS,
    ),
    "Interval": (
        "A range that should hold the target with a given probability. Coverage is the share of targets inside it.",
        NUMBERS,
    ),
    "PIT": (
        "Probability integral transform: the share of the predicted distribution below the target. For "
        "calibrated predictions all shares are equally frequent.",
        NUMBERS,
    ),
    "Entropy": ("How spread a prediction is over the classes: zero where one class has all the probability.", CLASSES),
    "Epistemic uncertainty": (
        "Uncertainty about the weights, which more training data would reduce. Mutual information and epistemic "
        "variance measure it.",
        BOTH,
    ),
    "Aleatoric uncertainty": ("Uncertainty that no amount of data removes: noise, or classes that look alike.", BOTH),
    "AUROC": (
        "In pairs of a known and an unknown input: how often the unknown one is the more uncertain one. 50 % is "
        "chance, 100 % is perfect.",
        BOTH,
    ),
    "FPR95": (
        "False alarms: the share of known inputs flagged at the threshold that flags 95 % of the unknown ones.",
        BOTH,
    ),
    "AUPR": (
        "Average precision: of the inputs that are flagged, the share that is really unknown, averaged over "
        "thresholds. It depends on how many unknown inputs there are.",
        BOTH,
    ),
    "Risk-coverage curve": (
        "The error among the surest predictions, against the share of predictions that is kept.",
        BOTH,
    ),
    "Confidence minus accuracy": (
        "Above 0 a method is too sure of itself, below 0 it is not sure enough.",
        CLASSES,
    ),
    "Constant": (
        "The same prediction for all inputs: the frequencies of the classes, or the mean of the targets. A network "
        "that is no better has learnt nothing.",
        BOTH,
    ),
    "95 % interval": (
        "The range of 95 % of the values when the test inputs are resampled (bootstrap). Two methods differ by more "
        "than chance explains if the interval of their difference, on the same resampled inputs, excludes 0. Their "
        "own intervals may still overlap.",
        BOTH,
    ),
    "FGSM, PGD": (
        "Attacks that change each input slightly, in the direction that raises the network's loss: FGSM in one step, "
        "PGD in ten. Strength is the largest change, as a share of the range of the inputs.",
        BOTH,
    ),
    "Temperature scaling": (
        "Dividing all outputs by one number, chosen on validation data: the simplest way to correct confidence.",
        CLASSES,
    ),
    "Prior precision": ("How strongly the prior holds weights near zero, as 1 / variance.", BOTH),
    "Effective dimensions": ("The number of weights that the data determine, rather than the prior.", BOTH),
    "Log evidence": (
        "The log probability of the training data under network and prior, averaged over all weights. It "
        "balances fit against complexity, and is used to choose the prior.",
        BOTH,
    ),
}

# Of the words below, those that pages of posteriors use.
OF_POSTERIORS = ("Posterior", "Prior", "Curvature", "GGN", "Structure", "Kronecker factors", "Mutual information")

METHOD_TERMS: dict[str, str] = {
    "Curvature": (
        "Second derivatives of the training loss: how fast it grows when the weights move. Where it is large, the "
        "data leave a weight little room."
    ),
    "GGN": (
        "Generalised Gauss-Newton matrix: the curvature of the loss if the network were linear in its weights. It is "
        "never negative, and it is what the linearised network has."
    ),
    "Hessian": "The exact matrix of second derivatives of the loss. It can be indefinite, so the GGN mostly stands in.",
    "Jacobian": "The derivatives of the network's outputs by its weights: how much each output moves with each weight.",
    "Kronecker factors": (
        "Two small matrices per layer, one of its inputs and one of its output gradients. Their product approximates "
        "the curvature of the layer's weight (KFAC)."
    ),
    "Structure": (
        "Which entries of the curvature are kept: all of them, a block per module, Kronecker factors, or the diagonal."
    ),
    "Posterior": "What is known about the weights after training: here a Gaussian around the trained weights.",
    "Prior": "What is assumed about the weights before any data: a Gaussian around zero with a precision.",
    "Precision": "1 / variance. A large prior precision holds weights close to the prior's mean.",
    "Noise": "The standard deviation of the targets around the network's output, in a regression.",
    "Likelihood": "The probability of a label given the network's outputs. It is what the training loss stands for.",
    "Logits": "The outputs of a classifier before the softmax.",
    "Linearised network": (
        "The network replaced by its tangent at the trained weights: its output there plus the Jacobian times the "
        "change of the weights. Its predictions have a closed form."
    ),
    "Linear mode": (
        "The weights at which the linearised network has the least regularised loss. The evidence is derived at such "
        "a mode, and trained weights are rarely at one."
    ),
    "Link": "The step from uncertain outputs to class probabilities: probit, Laplace bridge or Monte Carlo.",
    "Last layer": "The layer whose output is the network's output. Making it alone uncertain is cheap.",
    "Mutual information": (
        "How much the label would tell about the weights, in nats. It is the epistemic part of a classifier's entropy."
    ),
    "Unknown inputs": "Inputs of a kind that the network was not trained on, also called out-of-distribution (OOD).",
    "Validation data": "Labelled examples that the network was not trained on, used to choose the prior.",
    "Nats": "The unit of entropies and log-likelihoods with natural logarithms: 1 nat is 1.44 bits.",
}
