"""What a random network is compared with: plain loops in float64, and its own answers in other batches and layouts.

Every check returns a sentence where the library is wrong, and None where it is right. The references come from
`reference_dense`, which takes one backward pass per output number and imports nothing of the library.
"""

from __future__ import annotations

import copy
import functools
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import peewit as pw
import random_rules  # noqa: F401  # fills the grammar
import reference_dense as dense
from random_grammar import Network, network_of, stored_transposed

# The largest difference over the largest number, by the dtype of the network: rounding of its passes and of sums.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 2e-3}
ROUNDED = 4.0  # times the rounding of the network's own derivatives
# Of EKFAC in another batching or layout: eigenvectors of nearly equal eigenvalues turn with rounding.
TURNED = 1e-2
TWINS = {torch.float64: 1e-8, torch.float32: 1e-4}  # of the largest: eigenvalues whose vectors rounding turns
ALONE = 1e-9  # up to which an example's outputs in a batch are those that it has alone
COUPLED = {torch.float64: 1e-6, torch.float32: 1e-3}  # from which they are not
# Words of the errors for examples that depend on each other, and for outputs that depend on no weight.
MEETING, CONSTANT = "example", "does not depend on the selected weights"


def part(x: Any, chosen: slice) -> Any:
    """Some examples of inputs."""
    if isinstance(x, dict):
        return {name: each[chosen] for name, each in x.items()}
    return tuple(each[chosen] for each in x) if isinstance(x, tuple) else x[chosen]


def moved(x: Any, device: str, dtype: torch.dtype) -> Any:
    """Inputs or targets on a device, numbers in a dtype."""
    if isinstance(x, dict):
        return {name: moved(each, device, dtype) for name, each in x.items()}
    if isinstance(x, tuple):
        return tuple(moved(each, device, dtype) for each in x)
    return x.to(device, dtype if x.is_floating_point() else x.dtype)


def gap(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest number; infinite where shapes differ or numbers are not finite."""
    if found.is_complex() or found.shape != expected.shape:
        return float("inf")
    difference = (found.detach().cpu().double() - expected).abs()
    if not difference.numel():
        return 0.0
    worst = float(difference.max() / expected.abs().max().clamp(min=1e-2))
    return worst if worst == worst else float("inf")


def batch_jacobian(model: nn.Module, x: Any, names: list[str], like: Tensor | None = None) -> Tensor:
    """(N, F, D): derivatives of all outputs of a batch, one backward pass each; in float64, or like a tensor."""
    model = dense.prepared(model) if like is None else dense.prepared(model).to(like)
    parameters = dense.selected(model, names)
    with dense.plain():
        output = dense.apply(model, x)
        rows = [dense.flat_gradient(each, parameters) for each in output.reshape(-1)]
    return torch.stack(rows).reshape(len(output), -1, sum(each.numel() for each in parameters))


def connected(model: nn.Module, x: Any, names: list[str]) -> set[str]:
    """Names of the weights that the outputs' graph leads to."""
    model = dense.prepared(model)
    by_identity = {id(each): name for name, each in zip(names, dense.selected(model, names), strict=True)}
    with dense.plain():
        output = dense.apply(model, x)  # alive as long as its graph is walked
    stack = [output.grad_fn]
    found, seen = set(), set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.add(by_identity.get(id(getattr(node, "variable", None)), ""))
        stack.extend(following for following, _ in node.next_functions)
    return found - {""}


def has_twins(side: Tensor, apart: float) -> bool:
    """Whether matrices (G, n, n) have an eigenvalue twice, up to a share of the largest, that is not zero."""
    if side.dim() == 2:
        return False
    values = torch.linalg.eigvalsh(side.double())
    least = apart * values[:, -1:]
    return bool(((values.diff(dim=1) < least) & (values[:, 1:] > least)).any())


@dataclass
class Subject:
    """A random network on a device in a dtype, with its dense references."""

    network: Network
    device: str = "cpu"
    dtype: torch.dtype = torch.float64

    @functools.cached_property
    def plain(self) -> nn.Module:
        """The network on the CPU in float64."""
        return self.network.model()

    @functools.cached_property
    def names(self) -> list[str]:
        """Trainable parameters."""
        return [name for name, each in self.plain.named_parameters() if each.requires_grad]

    @functools.cached_property
    def x(self) -> Any:
        """Inputs of the training data."""
        return self.network.given(self.network.questions())

    @functools.cached_property
    def y(self) -> Tensor:
        """Targets of the training data."""
        return self.network.targets()

    @functools.cached_property
    def jacobian(self) -> Tensor:
        """(N, F, D): each example alone."""
        return dense.jacobian(self.plain, self.x, self.names)

    @functools.cached_property
    def ggn(self) -> Tensor:
        """(D, D) over all trainable weights."""
        hessian = dense.output_hessian(self.network.likelihood, dense.outputs(self.plain, self.x), self.y)
        return torch.einsum("nfd,nfg,nge->de", self.jacobian, hessian, self.jacobian)

    @functools.cached_property
    def coupling(self) -> float:
        """How far outputs and derivatives of examples alone are from those inside the batch."""
        many = self.network.given(self.network.questions(examples=self.network.examples + 2))
        return max(
            self.coupled_outputs(many),
            self.coupled_outputs(self.x),
            gap(batch_jacobian(self.plain, self.x, self.names), self.jacobian),
        )

    def coupled_outputs(self, inputs: Any, model: nn.Module | None = None) -> float:
        """How far outputs of examples alone are from those in a batch of them; also with other weights."""
        model = self.plain if model is None else model
        with torch.enable_grad(), dense.plain():
            together = dense.apply(dense.prepared(model), inputs).detach()
        return gap(together, dense.outputs(model, inputs))

    @property
    def likelihood(self) -> str | pw.Categorical:
        """By its name, or with the classes on the last axis where another one might be meant."""
        several = self.network.likelihood == "classification" and len(self.network.outputs) > 1
        return pw.Categorical(axis=len(self.network.outputs)) if several else self.network.likelihood

    @functools.cached_property
    def own_rounding(self) -> float:
        """How far plain loops in the network's dtype are from float64: steep networks round more than sums of them."""
        many = self.network.given(self.network.questions(examples=self.network.examples + 2))
        like = torch.zeros((), dtype=self.dtype, device=self.device)
        with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers have gradients in training alone
            found = batch_jacobian(self.plain, moved(many, self.device, self.dtype), self.names, like)
        return gap(found, dense.jacobian(self.plain, many, self.names))

    @property
    def tolerance(self) -> float:
        """Of float numbers of this dtype, and a few times what the network itself rounds: variances are squares."""
        least = TOLERANCES[self.dtype]
        return least if self.dtype == torch.float64 else max(least, ROUNDED * self.own_rounding)

    def model(self, change: Callable[[nn.Module], nn.Module] = lambda model: model) -> nn.Module:
        """A copy on the device, after a change of its layout."""
        return change(copy.deepcopy(self.plain)).to(self.device, self.dtype)

    def fit(self, structure: Any, model: nn.Module | None = None, x: Any = None, y: Any = None) -> pw.Laplace:
        """A posterior of the training data, or of other data."""
        data = (self.x, self.y) if x is None else (x, y)
        return pw.fit(
            self.model() if model is None else model,
            tuple(moved(each, self.device, self.dtype) for each in data),
            self.likelihood,
            structure=structure,
            curvature="ggn",
            arithmetic="float32" if self.dtype == torch.float32 else "auto",
        )

    @functools.cached_property
    def full(self) -> pw.Laplace:
        """The exact posterior."""
        return self.fit("full")

    @functools.cached_property
    def kron(self) -> pw.Laplace:
        """The Kronecker-factored one."""
        return self.fit("kron")

    @functools.cached_property
    def ekfac(self) -> pw.Laplace:
        """The Kronecker-factored one with its own moments."""
        return self.fit("ekfac")

    def posteriors(self) -> Iterator[tuple[str, pw.Laplace, float]]:
        """What does not depend on batches and layouts, and how far it may be off.

        EKFAC only where its bases are unique: outputs have different curvatures, and no factor has an eigenvalue twice,
        as those of inputs that go round in circles have.
        """
        yield "full", self.full, self.tolerance
        yield "kron", self.kron, self.tolerance
        factors = [
            side for own in self.kron.state.measurement.sums.factors.values() for side in (own.inputs, own.gradients)
        ]
        twins = any(has_twins(side, TWINS[self.dtype]) for side in factors)
        if self.network.likelihood == "classification" and not twins:
            yield "ekfac", self.ekfac, max(TURNED, self.tolerance)

    def index(self, names: tuple[str, ...]) -> Tensor:
        """Places of weights among all trainable ones."""
        starts, start = {}, 0
        for name in self.names:
            size = self.plain.get_parameter(name).numel()
            starts[name] = torch.arange(start, start + size)
            start += size
        return torch.cat([starts[name] for name in names])

    def functional(self, la: pw.Laplace, inputs: Any) -> Tensor:
        """(B, F, F): the covariance of every example's outputs at inputs."""
        joint = la.functional(moved(inputs, self.device, self.dtype), joint=True).cov
        count = joint.shape[0]
        size = math.isqrt(joint.numel()) // count
        return torch.stack([joint.reshape(count, size, count, size)[n, :, n] for n in range(count)])

    def marginal(self, la: pw.Laplace, inputs: Any) -> Tensor:
        """(B, F): the variances of every example's outputs at inputs."""
        made = la.functional(moved(inputs, self.device, self.dtype), variance_only=True).cov
        return made.reshape(len(made), -1)

    def variances(self, la: pw.Laplace, inputs: Any) -> Tensor:
        """(B, F, F): what the covariance of outputs is, by the dense Jacobian and the posterior's own matrix."""
        jacobian = dense.jacobian(self.plain, inputs, self.names)[:, :, self.index(la.space.names)]
        covariance = torch.linalg.inv(matrix(la) + torch.eye(la.D, dtype=torch.float64))
        return dense.functional_covariance(jacobian, covariance)


def matrix(la: pw.Laplace) -> Tensor:
    """(D, D): the curvature inside a posterior with prior precision one."""
    identity = torch.eye(la.D, dtype=la.weights.dtype, device=la.weights.device)
    return (la.precision.mv(identity) - identity).cpu().double()


def differs(what: str, found: Tensor, expected: Tensor, tolerance: float) -> str | None:
    """A sentence where numbers differ."""
    far = gap(found, expected)
    return f"{what} is off by {far:.1e}" if far > tolerance else None


CHECKS: dict[str, Callable[[Subject], Iterator[str | None]]] = {}
ALWAYS = ("exact", "unaided", "variances", "lengths")  # the others take turns where time is short


def check(function: Callable[[Subject], Iterator[str | None]]) -> Callable[[Subject], Iterator[str | None]]:
    """Add a check."""
    CHECKS[function.__name__] = function
    return function


@check
def exact(s: Subject) -> Iterator[str | None]:
    """`full` is the dense matrix of the weights used, and others are left out."""
    names = set(s.full.space.names)
    used = connected(s.plain, s.x, s.names)
    left_out = [name for name in s.names if name in used - names and s.ggn[s.index((name,))].abs().sum() > 0]
    yield f"{', '.join(left_out)} left out" if left_out else None
    yield f"{', '.join(names - used)} kept, which nothing depends on" if names - used else None
    index = s.index(s.full.space.names)
    expected = s.ggn[index][:, index]
    yield differs("full's matrix", matrix(s.full), expected, s.tolerance)
    weights = torch.cat([s.plain.get_parameter(name).detach().reshape(-1) for name in s.full.space.names])
    yield differs("the vector of weights", s.full.weights, weights, s.tolerance)


@check
def unaided(s: Subject) -> Iterator[str | None]:
    """What was learnt of the network was right before it was verified, in every structure and layout."""
    for what, la in (("full", s.full), ("kron", s.kron)):
        for each in la.state.knowledge.corrections:
            yield f"{what}: {each}"


@check
def diagonal(s: Subject) -> Iterator[str | None]:
    """`diag` is the diagonal of the dense matrix."""
    la = s.fit("diag")
    index = s.index(la.space.names)
    yield differs("diag's matrix", matrix(la), torch.diag(s.ggn.diagonal()[index]), s.tolerance)


@check
def batches(s: Subject) -> Iterator[str | None]:
    """Two batches add up to one, also where the second comes later."""
    first, second = slice(0, 2), slice(2, None)
    data = [(part(s.x, chosen), s.y[chosen]) for chosen in (first, second)]
    data = [tuple(moved(each, s.device, s.dtype) for each in pair) for pair in data]
    for structure, whole, tolerance in s.posteriors():
        split = pw.fit(s.model(), data, s.likelihood, structure=structure, curvature="ggn")
        if split.space.names != whole.space.names:
            yield f"{structure} of two batches has {set(whole.space.names) ^ set(split.space.names)} otherwise"
            continue
        yield differs(f"{structure}'s matrix of two batches", matrix(split), matrix(whole), tolerance)
    later = s.fit("kron", None, part(s.x, first), s.y[first]).update(data[1])
    if later.space.names == s.kron.space.names:
        yield differs("kron's matrix after an update", matrix(later), matrix(s.kron), s.tolerance)
    else:
        yield f"kron after an update has {set(s.kron.space.names) ^ set(later.space.names)} otherwise"


@check
def variances(s: Subject) -> Iterator[str | None]:
    """Covariances of outputs: in a larger batch, and of one input alone, by the dense Jacobian."""
    many = s.network.given(s.network.questions(examples=s.network.examples + 2))
    for structure, la in (("full", s.full), ("kron", s.kron)):
        expected = s.variances(la, many)
        yield differs(f"{structure}'s covariance in a batch", s.functional(la, many), expected, s.tolerance)
        for n in (0, 2) if structure == "full" else (1,):
            found = s.functional(la, part(many, slice(n, n + 1)))
            yield differs(f"{structure}'s covariance of one input", found, expected[n : n + 1], s.tolerance)
    found = s.marginal(s.full, part(many, slice(1, 4)))
    variance = s.variances(s.full, part(many, slice(1, 4))).diagonal(dim1=1, dim2=2)
    yield differs("full's variances of three inputs", found, variance, s.tolerance)


@check
def lengths(s: Subject) -> Iterator[str | None]:
    """Sequences of another length than those of the training data."""
    if not s.network.flexible:
        return
    for length in (2, 3, 4):
        inputs = s.network.given(s.network.questions(examples=3, length=length))
        if s.coupled_outputs(inputs) > ALONE:
            continue  # examples that meet at this length alone, where units are dead at the others
        expected = s.variances(s.full, inputs)
        yield differs(f"covariance at length {length}", s.functional(s.full, inputs), expected, s.tolerance)


@check
def layouts(s: Subject) -> Iterator[str | None]:
    """The same posterior where weights lie otherwise in memory."""

    def contiguous(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.set_(parameter.detach().contiguous())
        return model

    ways = {"stored transposed": stored_transposed, "contiguous": contiguous}
    if any(each.dim() == 4 for each in s.plain.parameters()):
        ways["in channels_last"] = lambda model: contiguous(model).to(memory_format=torch.channels_last)
    own = (
        "stored transposed" if s.network.transposed else "in channels_last" if s.network.channels_last else "contiguous"
    )
    ways.pop(own, None)
    for way, change in ways.items():
        for structure, whole, tolerance in s.posteriors():
            la = s.fit(structure, s.model(change))
            same = la.space.names == whole.space.names
            yield None if same else f"{structure} {way} has other weights"
            if same:
                yield differs(f"{structure}'s matrix {way}", matrix(la), matrix(whole), tolerance)


@check
def ekfac(s: Subject) -> Iterator[str | None]:
    """The trace is that of the exact matrix, whatever the bases; covariances follow from its own matrix."""
    la = s.ekfac
    index = s.index(la.space.names)
    found, expected = matrix(la), s.ggn[index][:, index]
    yield differs("ekfac's trace", found.trace(), expected.trace(), s.tolerance)
    yield differs("ekfac's covariance", s.functional(la, s.x), s.variances(la, s.x), s.tolerance)


@check
def rounding(s: Subject) -> Iterator[str | None]:
    """A float32 network has the posterior of the float64 one up to rounding."""
    if s.dtype != torch.float64:
        return
    short = Subject(s.network, s.device, torch.float32)
    for structure, whole in (("full", s.full), ("kron", s.kron)):
        la = short.fit(structure)
        if la.space.names != whole.space.names:
            yield f"{structure} in float32 has other weights"
            continue
        yield differs(f"{structure}'s matrix in float32", matrix(la), matrix(whole), short.tolerance)
        expected = s.functional(whole, s.x).cpu().double()
        yield differs(f"{structure}'s covariance in float32", short.functional(la, s.x), expected, short.tolerance)


@check
def products(s: Subject) -> Iterator[str | None]:
    """Products with the curvature are those with the dense matrix."""
    made = pw.products(s.model(), tuple(moved(each, s.device, s.dtype) for each in (s.x, s.y)), s.likelihood)
    index = s.index(made.space.names)
    found = made.mv(torch.eye(len(index), dtype=s.dtype, device=s.device))
    yield differs("the products' matrix", found, s.ggn[index][:, index], s.tolerance)


@check
def draws(s: Subject) -> Iterator[str | None]:
    """Draws of the weights through the Jacobian, and through the network itself."""
    la, x = s.full, moved(s.x, s.device, s.dtype)

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(s.network.seed)

    weights = la.sample(2, generator=generator()).cpu().double()
    index = s.index(la.space.names)
    pushed = torch.einsum("nfd,sd->snf", s.jacobian[:, :, index], weights - la.weights.cpu().double())
    expected = dense.outputs(s.plain, s.x).reshape(1, *pushed.shape[1:]) + pushed
    found = la.functional_samples(x, 2, generator=generator())
    yield differs("samples of the linearised outputs", found.reshape(expected.shape), expected, s.tolerance)
    one_by_one = generator()
    outputs = []
    for _ in range(2):
        drawn = copy.deepcopy(s.plain)
        vector = la.sample(1, generator=one_by_one)[0].cpu().double()
        with torch.no_grad():
            for name in la.space.names:
                parameter = drawn.get_parameter(name)
                value, vector = vector[: parameter.numel()], vector[parameter.numel() :]
                parameter.copy_(value.view(parameter.shape))
        if s.coupled_outputs(s.x, drawn) > ALONE:
            return  # examples that meet at these weights alone
        outputs.append(dense.outputs(drawn, s.x))
    found = la.predict(x, method="sampled", samples=2, generator=generator()).output_mean
    # Draws are far from the mode, where networks are steep.
    yield differs("the mean of sampled outputs", found, torch.stack(outputs).mean(0), 10 * s.tolerance)


@check
def untouched(s: Subject) -> Iterator[str | None]:
    """The network comes back as it was."""
    model = s.model()
    before = {name: (each.clone(), each.stride()) for name, each in model.state_dict(keep_vars=False).items()}
    flags = {name: (each.requires_grad, each.grad is None) for name, each in model.named_parameters()}
    s.fit("kron", model)
    after = model.state_dict(keep_vars=False)
    same = all(
        torch.equal(value, after[name]) and after[name].stride() == stride for name, (value, stride) in before.items()
    )
    yield None if same else "the network's numbers changed"
    now = {name: (each.requires_grad, each.grad is None) for name, each in model.named_parameters()}
    yield None if now == flags else "the network's gradients changed"


def failures(
    network: Network, device: str = "cpu", dtype: torch.dtype = torch.float64, only: tuple[str, ...] = ()
) -> list[str]:
    """Sentences about everything that is wrong with the library's answers for a network."""
    s = Subject(network, device, dtype)
    if not connected(s.plain, s.x, s.names):
        return _refusal(s, least=0.0, words=(CONSTANT,))
    if s.coupling > ALONE:
        return _refusal(s)
    if any(option.startswith("examples meet") for option in network.options):
        # They do where units are dead at these weights. Where all examples are equal, what they have in common leaves
        # nothing but rounding of the outputs: then it is as true that these do not depend on the weights.
        constant = float(s.jacobian.abs().max()) < ALONE
        if not _refusal(s, least=0.0, words=(MEETING, CONSTANT) if constant else (MEETING,)):
            return []
    found = []
    for name, function in CHECKS.items():
        if only and name not in only:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)
                warnings.filterwarnings("ignore", message="Categorical: all outputs of the first batch are positive")
                warnings.filterwarnings("ignore", message="Attempting to run cu")  # on a thread of autograd
                found += [f"{name}: {sentence}" for sentence in function(s) if sentence]
        except Exception as error:
            text = str(error).strip().splitlines()
            found.append(f"{name}: raised {type(error).__name__}: {text[0][:200] if text else ''}")
    return found


def _refusal(s: Subject, least: float | None = None, words: tuple[str, ...] = (MEETING,)) -> list[str]:
    """What is wrong with the error that the library has to raise, which should have one of some words."""
    least = COUPLED[s.dtype] if least is None else least
    if s.coupling < least or s.coupled_outputs(part(s.x, slice(0, 2))) < least:
        return []  # too near to rounding to be noticed, or not to be seen in the first examples, which may be equal
    try:
        s.fit("kron")
    except ValueError as error:
        return [] if any(each in str(error) for each in words) else [f"refusal: says nothing of this: {error}"]
    except Exception as error:
        return [f"refusal: raised {type(error).__name__}: {error}"]
    return ["refusal: examples depend on each other, and nothing was said"]


def some_checks(seed: int) -> tuple[str, ...]:
    """The checks of a seed where time is short."""
    others = [name for name in CHECKS if name not in ALWAYS]
    return (*ALWAYS, others[seed % len(others)], others[(seed + 3) % len(others)])


def kinds(found: list[str]) -> set[str]:
    """The failures without their numbers."""
    return {re.sub(r"\d+", "#", each.split(" is off by")[0]) for each in found}


def shrunk(network: Network, **options: Any) -> tuple[Network, list[str]]:
    """The smallest part of a network's program that still fails in one of the same ways."""
    found = failures(network, **options)
    wanted, steps = kinds(found), list(network.program)
    smaller = True
    while smaller:
        smaller = False
        for place in reversed(range(1, len(steps) - 1)):  # inputs and head stay
            fewer = steps[:place] + steps[place + 1 :]
            try:
                candidate = network_of(tuple(fewer), network.seed)
                left = failures(candidate, **options)
            except Exception:  # a program that makes no network
                continue
            if kinds(left) & wanted:
                network, found, steps, smaller = candidate, left, fewer, True
    return network, found
