"""The reference itself, against closed forms and against properties that hold whatever the network."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import reference
from cases import BY_NAME, CASES, Case
from reference_capture import Recorder

MATRICES = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.modules.conv._ConvNd,
    nn.MultiheadAttention,
)
# parameters of such modules that are unused, or also used in another way
EXCEPTIONS = {
    "borrowed_weight": {"owner.bias"},
    "embedding_rows": {"0.token.weight"},
    "self_attention_bias_kv": {"attention.bias_k", "attention.bias_v"},
    "unused_layer": {"spare.weight", "spare.bias"},
}
# bare parameters that are applied as matrices or as the bias of a linear function
BARE = {
    "addmm": {f"{layer}.{name}" for layer in ("enter", "mix", "head") for name in ("weight", "bias")},
    "addmm_forms": {"row", "first", "second", "third", "shift"},
    "baddbmm": {"weight", "bias"},
    "batched_matmul": {"weight"},
    "bmm": {"weight"},
    "borrowed_weight": {"shift"},
    "einsum_attention": {"query", "key", "value", "out"},
    "einsum_forms": {"both", "turned", "packed"},
    "einsum_groups": {"weight"},
    "einsum_tied": {"both"},
    "left_bmm": {"weight"},
    "left_matmul": {"mix", "vector"},
    "lora_parameters": {"lora_A", "lora_B"},
    "matrix_product": {"first", "second"},
    "routed_ignoring": {"weight"},
    "sorted_experts": {"weight"},
    "switch_masks": {"weight"},
    "square_both_ways": {"square", "shift"},
    "stretched_matmul": {"weight"},
    "tied_autoencoder": {"shift"},
    "transposed_linear": {"first", "shift", "packed", "last", "out"},
}
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def close(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors of one shape agree to rounding."""
    return left.shape == right.shape and torch.allclose(left, right, rtol=1e-8, atol=1e-9)


def inside_blocks(matrix: Tensor, blocks: list[reference.Block]) -> Tensor:
    """Return a matrix (D, D) with zeros outside the given blocks."""
    parts = [matrix[b.index.flatten()[:, None], b.index.flatten()] for b in blocks]
    return reference.dense(blocks, parts, len(matrix))


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Return fixed normal numbers (*shape)."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The table of cases


def test_cases_have_unique_names_and_leave_the_random_state_alone() -> None:
    """Names tell cases apart, and making one twice gives the same and draws nothing from the global generator."""
    assert len(BY_NAME) == len(CASES) >= 40
    state = torch.random.get_rng_state()
    first, second = CASES[0].make(), CASES[0].make()
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(next(first[0].parameters()), next(second[0].parameters()))
    assert torch.equal(first[1], second[1])


@EVERY
def test_examples_are_independent(case: Case) -> None:
    """A batch gives each example what it gets alone, with few weights and outputs."""
    model, x, y = case.make()
    alone = reference.outputs(model, x)
    with reference.plain():
        together = reference.apply(reference.prepared(model), x).detach()
    assert close(alone, together)
    assert alone[0].numel() <= 12 and sum(p.numel() for p in model.parameters()) <= 400
    assert torch.isfinite(reference.energy(model, x, y, case.likelihood, case.axis))


# Recorded calls


@EVERY
def test_matrices_are_captured(case: Case) -> None:
    """The positions' g a^T add up to the true Jacobian for exactly the parameters that are applied as matrices."""
    model, x, _ = case.make()
    names = case.names(model)
    expected = set(BARE.get(case.name, ()))
    for prefix, module in model.named_modules():
        if isinstance(module, MATRICES):
            expected |= {f"{prefix}.{name}".lstrip(".") for name, _ in module.named_parameters(recurse=False)}
    expected = (expected & set(names)) - EXCEPTIONS.get(case.name, set())
    found = reference.captured(reference.observe(model, x, names), reference.ranges(model, names))
    assert found == expected


def test_recording_restores_torch() -> None:
    """The functions of torch are its own again after recording, even after an error."""
    products = ("matmul", "mm", "bmm", "addmm", "baddbmm")
    before = [getattr(owner, name) for owner in (torch, torch.Tensor) for name in products]
    before += [functional.linear, functional.conv2d, torch.einsum, torch.Tensor.__matmul__]
    with pytest.raises(RuntimeError), Recorder(nn.Linear(2, 2), ["weight"]).recording():
        raise RuntimeError
    after = [getattr(owner, name) for owner in (torch, torch.Tensor) for name in products]
    after += [functional.linear, functional.conv2d, torch.einsum, torch.Tensor.__matmul__]
    assert before == after


# Whole curvatures


@pytest.mark.parametrize("name", ["mlp", "conv2d", "tied_autoencoder", "segmentation", "unet"])
def test_jacobian_matches_functional_transform(name: str) -> None:
    """Loops over output scalars give what reverse-mode differentiation of the whole batch gives."""
    model, x, _ = BY_NAME[name].make()
    weights = {key: value.detach() for key, value in model.named_parameters()}
    whole = torch.func.jacrev(lambda w: torch.func.functional_call(model, w, (x,)).reshape(len(x), -1))(weights)
    expected = torch.cat([part.flatten(2) for part in whole.values()], 2)
    assert close(reference.jacobian(model, x, list(weights)), expected)


@EVERY
def test_empirical_matches_jacobian_and_residual(case: Case) -> None:
    """Gradients of the energy are the Jacobian times the residual, and one sampled label set is as good as observed."""
    model, x, y = case.make()
    names = case.names(model)
    jacobian = reference.jacobian(model, x, names)
    residual = reference.residual(case.likelihood, reference.outputs(model, x), y, case.axis)
    gradients = torch.einsum("nfd,nf->nd", jacobian, residual)
    empirical = reference.empirical(model, x, y, case.likelihood, names, case.axis)
    assert close(empirical, gradients.T @ gradients)
    assert close(empirical, reference.fisher(model, x, [y, y], case.likelihood, names, case.axis))


def test_hessian_of_linear_model_is_ggn_in_closed_form() -> None:
    """For one linear layer with softmax the Hessian, the GGN and the sum of (diag(p) - pp^T) x aa^T are the same."""
    model, x, y = nn.Linear(3, 4, bias=False).double(), draw(5, 3), torch.tensor([0, 3, 1, 1, 2])
    p = torch.softmax(model(x).detach(), -1)
    inner = [torch.diag(q) - torch.outer(q, q) for q in p]
    expected = sum(torch.kron(h, torch.outer(a, a)) for h, a in zip(inner, x, strict=True))
    assert close(reference.ggn(model, x, y, "classification", ["weight"]), expected)
    assert close(reference.hessian(model, x, y, "classification", ["weight"]), expected)


@EVERY
def test_hessian_is_symmetric_derivative_of_gradient(case: Case) -> None:
    """The Hessian is symmetric, and along one direction it is the slope of the gradient."""
    model, x, y = case.make(2)
    names = case.names(model)
    hessian = reference.hessian(model, x, y, case.likelihood, names, case.axis)
    # the padding row of an embedding stays, as torch gives it no gradient although the outputs depend on it
    direction, step = draw(len(hessian)) * hessian.any(1), 1e-5
    sides = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        pieces = direction.split([p.numel() for p in reference.selected(moved, names)])
        for parameter, piece in zip(reference.selected(moved, names), pieces, strict=True):
            parameter.data += sign * step * piece.reshape(parameter.shape)
        sides.append(reference.gradients(moved, x, y, case.likelihood, names, case.axis).sum(0))
    slope = (sides[0] - sides[1]) / (2 * step)
    assert close(hessian, hessian.T)
    assert (hessian @ direction - slope).abs().max() < 1e-6 * (1 + slope.abs().max())


@EVERY
def test_root_squares_to_output_hessian(case: Case) -> None:
    """Summed over probes, the gradients' outer products are the GGN."""
    model, x, y = case.make()
    f = reference.outputs(model, x)
    root = reference.output_root(case.likelihood, f, y, case.axis)
    assert close(root @ root.mT, reference.output_hessian(case.likelihood, f, y, case.axis))


def test_output_hessian_is_second_derivative() -> None:
    """The output Hessian is that of the energy, for classes along any axis and with ignored labels."""
    f, y = draw(2, 3, 2), torch.tensor([[0, -100], [2, 1]])
    for n in range(2):

        def value(g: Tensor, n: int = n) -> Tensor:
            return reference.energy_of("classification", g.reshape(1, 3, 2), y[n : n + 1], 1)

        expected = torch.autograd.functional.hessian(value, f[n].reshape(-1))
        assert close(reference.output_hessian("classification", f, y, 1)[n], expected)


# Kronecker factors


@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("bias", ["separate", "joint"])
@pytest.mark.parametrize("name", ["mlp", "mlp_regression", "deep_linear", "batch_norm1d", "bilinear", "weight_norm"])
def test_one_example_without_sharing_is_exact(name: str, bias: str, approx: str) -> None:
    """With one example and one position both approximations are the exact blocks of the GGN."""
    case = BY_NAME[name]
    model, x, y = case.make(1)
    names = case.names(model)
    settings = {"approx": approx, "bias": bias}
    parts, _ = reference.blocks(model, x, y, case.likelihood, names, **settings)
    expected = inside_blocks(reference.ggn(model, x, y, case.likelihood, names), parts)
    assert close(reference.kron(model, x, y, case.likelihood, names, **settings), expected)
    assert close(reference.ekfac(model, x, y, case.likelihood, names, **settings), expected)
    assert any("+" in block.key for block in parts) == (bias == "joint")


@pytest.mark.parametrize("bias", ["separate", "joint"])
def test_one_shared_linear_layer_is_exact(bias: str) -> None:
    """One linear layer with an output at every position is exact under expand, with their mean exact under reduce."""
    model, x = nn.Sequential(nn.Linear(3, 2)).double(), draw(4, 5, 3)
    names = ["0.weight", "0.bias"]
    pooled = nn.Sequential(model[0], Mean())
    for network, y, approx in ((model, draw(4, 5, 2), "expand"), (pooled, draw(4, 2), "reduce")):
        parts, whole = reference.blocks(network, x, y, "regression", names, approx=approx, bias=bias)
        expected = inside_blocks(reference.ggn(network, x, y, "regression", names), parts)
        assert close(reference.kron_of(parts, whole), expected)


class Mean(nn.Module):
    """A mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean (B, C) of x (B, T, C)."""
        return x.mean(1)


@pytest.mark.parametrize("curvature", ["ggn", "empirical"])
@pytest.mark.parametrize("approx", ["expand", "reduce"])
@EVERY
def test_blocks_have_right_places_and_traces(case: Case, approx: str, curvature: str) -> None:
    """Blocks fill the diagonal once, are semidefinite, and corrected eigenvalues keep the exact trace of each block."""
    model, x, y = case.make()
    names = case.names(model)
    for bias in ("separate", "joint"):
        settings = {"approx": approx, "bias": bias, "curvature": curvature, "axis": case.axis}
        parts, whole = reference.blocks(model, x, y, case.likelihood, names, **settings)
        matrix, corrected = reference.kron_of(parts, whole), reference.ekfac_of(parts, whole)
        places = torch.cat([block.index.flatten() for block in parts])
        assert len(places) == len(set(places.tolist())) <= whole.shape[-1]
        assert close(matrix, matrix.T) and torch.linalg.eigvalsh(matrix).min() > -1e-9
        exact = (whole**2).sum((0, 1))
        for block in parts:
            index = block.index.flatten()
            assert close(corrected.diagonal()[index].sum(), exact[index].sum())
        missing = torch.ones(whole.shape[-1], dtype=torch.bool).index_fill(0, places, False)
        assert not exact[missing].any()


def test_ignored_labels_leave_no_trace() -> None:
    """A network of separate positions has the curvature of its labelled positions taken as examples."""
    case = BY_NAME["ignored_labels"]
    model, x, y = case.make()
    labelled = y.reshape(-1) != -100
    tokens, labels = x.reshape(-1, 1)[labelled], y.reshape(-1, 1)[labelled]
    for curvature in ("ggn", "empirical"):
        # the empirical Fisher sums over positions first, so there only the factors of the matrices compare
        arguments = {"bias": "joint", "curvature": curvature}
        whole, _ = reference.blocks(model, x, y, case.likelihood, case.names(model), **arguments)
        apart, _ = reference.blocks(model, tokens, labels, case.likelihood, case.names(model), **arguments)
        for left, right in zip(whole, apart, strict=True):
            if left.exact is None:
                assert close(left.row_factor, right.row_factor) and close(left.column_factor, right.column_factor)
            else:
                assert curvature == "empirical" or close(left.exact, right.exact)


@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_ignored_examples_leave_no_trace(approx: str) -> None:
    """Examples without a label change nothing, neither sums nor counts."""
    case = BY_NAME["ignored_examples"]
    model, x, y = case.make()
    names = case.names(model)
    kept = y != -100
    whole = reference.kron(model, x, y, case.likelihood, names, approx=approx)
    assert close(whole, reference.kron(model, x[kept], y[kept], case.likelihood, names, approx=approx))


def test_padding_index_is_no_position() -> None:
    """The input factor of an embedding holds the share of each token among those that are not padding."""
    case = BY_NAME["embedding_padding"]
    model, x, y = case.make()
    (block,), _ = reference.blocks(model, x, y, case.likelihood, ["embedding.weight"])
    counts = torch.bincount(x[x != 0], minlength=6).double()
    assert close(block.column_factor, torch.diag(counts / counts.sum()))


@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("bias", ["separate", "joint"])
def test_pointwise_convolution_is_linear(approx: str, bias: str) -> None:
    """A convolution with kernel 1, plain or transposed, has the blocks of a linear layer on its positions."""
    linear, x, y = nn.Linear(2, 3).double(), draw(4, 5, 2), draw(4, 5, 3, seed=1)
    plain, transposed = nn.Conv1d(2, 3, 1).double(), nn.ConvTranspose1d(2, 3, 1).double()
    plain.load_state_dict({"weight": linear.weight[:, :, None], "bias": linear.bias})
    transposed.load_state_dict({"weight": linear.weight.T[:, :, None], "bias": linear.bias})
    settings = {"approx": approx, "bias": bias}
    names = ["weight", "bias"]
    expected = reference.kron(linear, x, y, "regression", names, **settings)
    assert close(reference.kron(plain, x.mT, y.mT, "regression", names, **settings), expected)
    order = torch.cat([torch.arange(6).reshape(2, 3).T.reshape(-1), torch.arange(6, 9)])
    swapped = reference.kron(transposed, x.mT, y.mT, "regression", names, **settings)
    assert close(swapped[order[:, None], order], expected)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_groups_are_separate_convolutions(kind: type) -> None:
    """The weight's block of a grouped convolution is made of the blocks of its groups on their own."""
    whole = kind(4, 6, 2, groups=2, stride=2).double()
    x, rest = draw(3, 4, 6), whole.weight[0].numel()
    y = torch.zeros_like(whole(x)).detach()
    matrix = reference.kron(whole, x, y, "regression", ["weight", "bias"], bias="joint")
    half = whole.weight.numel() // 2
    assert rest * len(whole.weight) == 2 * half and not matrix[:half, half : 2 * half].any()
    for j in range(2):
        single = kind(2, 3, 2, stride=2).double()
        single.load_state_dict({"weight": whole.weight.chunk(2)[j], "bias": whole.bias.chunk(2)[j]})
        own = reference.kron(single, x.chunk(2, 1)[j], y.chunk(2, 1)[j], "regression", ["weight", "bias"], bias="joint")
        places = torch.cat([torch.arange(half) + j * half, torch.arange(3) + 2 * half + 3 * j])
        assert close(matrix[places[:, None], places], own)


def test_packed_attention_in_slices_is_separate_projections() -> None:
    """Slices of a packed projection have the blocks of three separate weights."""
    packed, x, y = BY_NAME["cross_attention_three"].make()
    separate = nn.MultiheadAttention(4, 2, batch_first=True, kdim=4, vdim=4).double()
    separate._qkv_same_embed_dim = False
    state = packed.attention.state_dict()
    weights = dict(zip("qkv", state.pop("in_proj_weight").chunk(3), strict=True))
    separate.in_proj_weight = None
    for letter, weight in weights.items():
        setattr(separate, f"{letter}_proj_weight", nn.Parameter(weight))
    separate.load_state_dict({**state, **{f"{key}_proj_weight": value for key, value in weights.items()}})
    expected = reference.kron(packed, x, y, "classification", ["attention.in_proj_weight"])
    packed.attention = separate
    names = [f"attention.{letter}_proj_weight" for letter in "qkv"]
    assert close(reference.kron(packed, x, y, "classification", names), expected)


def test_orientation_does_not_matter() -> None:
    """A product with a matrix and a linear layer with its transpose have the same block in another order."""
    case = BY_NAME["matrix_product"]
    model, x, y = case.make()
    linear = nn.Linear(4, 5, bias=False).double()
    linear.weight.data = model.first.data.T.clone()
    expected = reference.kron(model, x, y, case.likelihood, ["first"])

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return torch.matmul(torch.tanh(self.linear(x) + self.shift), self.second).mean(1)

    model.linear, model.body = linear, forward
    order = torch.arange(20).reshape(4, 5).T.reshape(-1)
    found = reference.kron(model, x, y, case.likelihood, ["linear.weight"])
    assert close(found, expected[order[:, None], order])


def test_both_orientations_add_their_traces() -> None:
    """One pair for a weight used both ways keeps the total trace, whichever side is called rows."""
    first = (torch.diag(torch.tensor([1.0, 3.0])), torch.diag(torch.tensor([2.0, 1.0, 1.0])))
    second = (torch.diag(torch.tensor([5.0, 1.0])), torch.diag(torch.tensor([1.0, 1.0, 4.0])))
    total = sum(row.trace() * column.trace() for row, column in (first, second))
    row, column = reference.both_orientations([first, second])
    assert torch.isclose(row.trace() * column.trace(), total)
    column_swapped, row_swapped = reference.both_orientations([first[::-1], second[::-1]])
    assert torch.allclose(torch.kron(row, column), torch.kron(row_swapped, column_swapped))
    row, column = reference.both_orientations([first, first])
    assert torch.allclose(torch.kron(row, column), 2 * torch.kron(*first))


def test_sampled_labels_form_one_factor() -> None:
    """Repeating one label set changes nothing, and sampled labels that are the observed ones give the empirical."""
    case = BY_NAME["mlp"]
    model, x, y = case.make()
    expected = reference.kron(model, x, y, case.likelihood, case.names(model), curvature="empirical")
    found = reference.kron(model, x, [y, y, y], case.likelihood, case.names(model), curvature="fisher")
    assert close(found, expected)


# Posterior quantities


def test_evidence_of_linear_regression_is_exact() -> None:
    """For a linear model the Laplace evidence is the Gaussian marginal likelihood of the targets."""
    model, x, y, sigma = nn.Linear(3, 1, bias=False).double(), draw(6, 3), draw(6, 1, seed=1), 0.7
    delta, mean = torch.tensor([0.5, 1.0, 2.0]).double(), draw(3, seed=2)
    curvature = reference.ggn(model, x, y, "regression", ["weight"])
    covariance = reference.posterior(curvature, delta, 1 / sigma**2)
    theta = covariance @ (x.T @ y[:, 0] / sigma**2 + delta * mean)
    model.weight.data = theta[None]
    fit = reference.log_likelihood("regression", reference.energy(model, x, y, "regression"), y.numel(), sigma)
    found = reference.log_evidence(fit, curvature, theta, mean, delta, 1 / sigma**2)
    marginal = sigma**2 * torch.eye(6).double() + x @ torch.diag(1 / delta) @ x.T
    expected = torch.distributions.MultivariateNormal(x @ mean, marginal).log_prob(y[:, 0])
    assert close(found, expected)


def test_joint_functional_covariance_holds_the_single_ones() -> None:
    """The diagonal blocks of the joint covariance are those of the examples."""
    jacobian, root = draw(3, 2, 5), draw(5, 5, seed=1)
    single = reference.functional_covariance(jacobian, root @ root.T)
    joint = reference.joint_functional_covariance(jacobian, root @ root.T)
    assert all(close(joint[2 * n : 2 * n + 2, 2 * n : 2 * n + 2], single[n]) for n in range(3))
