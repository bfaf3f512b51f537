"""Where to find what other libraries, laplace-torch above all, give another name or another place."""

from __future__ import annotations


def rows(table: dict[str, str]) -> dict[str, str]:
    """A sentence by each of the names that lead to it."""
    return {name: sentence for sentence, names in table.items() for name in names.split()}


FUNCTIONS = (
    "there is no posterior over functions; la.functional(x, joint=True) has the covariance of the linearised network's "
    "outputs between inputs"
)
LOW_RANK = (
    "no structure is of low rank; structure='kron' takes little memory, and structure='full' is exact for few weights, "
    "such as weights='last_layer'"
)

# On a posterior.
POSTERIOR = rows(
    {
        "use la.likelihood.noise, and la.with_noise(...) to change it": "sigma_noise noise",
        "use la.prior.precision, and la.with_prior(...) to change it": "prior_precision prior_precision_diag",
        "use la.prior.grouping, and la.with_prior(pw.Prior.layerwise(1.0)) or another to change it": "prior_structure",
        "use la.prior.mean": "prior_mean",
        "the prior is of the weights; use la.prior.precision": "gp_kernel_prior_variance",
        "use la.precision.solve(v), the covariance times v, or la.precision.variance(), its diagonal": (
            "posterior_covariance posterior_variance"
        ),
        "use la.precision.root(eps), standard normal numbers as deviations of the weights": (
            "posterior_scale _posterior_scale invsqrt_precision"
        ),
        "use la.precision.mv(v), the precision times v, or pw.products(model, data, likelihood).mv(v), the curvature "
        "times v": "H H_factor _H_factor hessian kron",
        "use la.precision.logdet()": "log_det_posterior_precision log_det logdet",
        "use la.evidence(), which has its parts": (
            "log_det_ratio log_det_prior_precision log_likelihood scatter square_norm loss marginal_likelihood"
        ),
        "with d = w - la.weights, the log density of weights w is (la.precision.logdet() - d @ la.precision.mv(d) - "
        "la.D * math.log(2 * math.pi)) / 2, and that of labels is la.predict(x).log_prob(y)": "log_prob",
        "pw.figures.kronecker_factors(la, name) has the factors of a weight, cut to most= rows and columns": "H_facs",
        "nothing is damped: the prior's precision is added to the eigenvalues of the curvature exactly, and "
        "la.with_prior(...) changes it": "damping",
        "its mean is la.weights, and la.predict(x).mean is that of a prediction": "mean mu map MAP posterior_mean",
        "the trained weights are la.weights, and la.predict(x).mode is the likeliest label": "mode",
        "the kind of curvature is la.curvature": "kind",
        "the kind of curvature is la.curvature, and la.coverage() says how each weight was handled": "backend",
        "la.D is the number of uncertain weights, and la.space.names says which": (
            "n_params n_params_subset subset_of_weights is_subset_params params parameters named_parameters"
        ),
        "la.space.names has the names of the selected tensors, and len(la.space.names) is their number": "n_layers",
        "la.N is the number of examples": "n_data num_data",
        "its training data are not kept; la.update(data) adds more": "data X y train_loader fit",
        "la.weights.device is its device, and la.to(device) moves it": "device",
        "use la.predict(x) for labels and la.functional(x) for the outputs": (
            "glm_predictive_distribution _glm_predictive_distribution functional_predict forward predictive "
            "predictive_moments"
        ),
        "use la.functional(x).cov, or la.functional(x, variance_only=True).cov for variances alone": (
            "functional_variance functional_variance_fast functional_covariance gp_quantities"
        ),
        "use la.functional_samples(x, samples) for outputs, and la.predict(x).sample(samples) for labels": (
            "predictive_samples _nn_predictive_samples"
        ),
        "use la.sample(samples)": "posterior_samples",
        "use la.tune()": "optimize_prior_precision optimize_prior_precision_base optimize_hyperparameters",
        "use la.save(path), and pw.load(path, model)": "state_dict load_state_dict",
        "gradients in x are create_graph=True of la.predict and la.functional": "enable_backprop",
        "use la.functional(x).mean.shape[1:], the shape of one output": "n_outputs",
    }
)

# Options of calls.
OPTIONS = rows(
    {
        "give the noise with the likelihood: pw.Gaussian(noise=...)": "sigma_noise noise",
        "use la.with_temperature(...) after the fit": "temperature",
        "give the prior as a value: pw.Prior.scalar(precision, mean=...)": "prior_mean",
        "give the prior as a value, such as prior=pw.Prior.layerwise(1.0) in the fit": "prior_structure",
        "use start=, and la.with_prior(...) for a value that stays": "init_prior_prec",
        "use limits=(smallest, largest), of precisions": "log_prior_prec_min log_prior_prec_max",
        "use grid=[...] with the values": "grid_size log_prior_prec_base",
        "the score is the NLL on validation data or the evidence; for other metrics use pw.sweep(la, validation, "
        "metric=...)": "loss",
        "leave it out: no method= of tuning has a learning rate": "lr",
        "leave it out: predictions are the same without it, and gradients in x are create_graph=True of la.predict": (
            "fitting"
        ),
        "la.functional_samples(x, samples) are of the linearised network; for the network itself use la.predict(x, "
        "method='sampled')": "pred_type",
        "la.functional_samples(x, samples) are joint over all inputs; covariances between inputs are joint=True of "
        "la.functional and la.predict": "joint",
        "give all inputs by name, as in la.predict(**batch)": "model_kwargs",
        f"leave it out: {FUNCTIONS}": "functional_approximation independent_outputs n_subset",
        "give options of the predictions that are scored as predict={...}": "link_approx n_samples",
        "give a batch as a mapping with 'labels'; all its other tensors go to the network": "dict_key_x dict_key_y",
        "gradients in x are create_graph=True of la.predict and la.functional": "enable_backprop",
        "choose the curvature by curvature=, such as pw.MonteCarlo(samples=3)": (
            "backend_kwargs asdl_fisher_kwargs stochastic mc_samples"
        ),
        "choose weights by weights=: their names or patterns, a mask, or a pw.Subnetwork": (
            "last_layer_name subnetwork_indices"
        ),
        "give a DataLoader with that batch size": "batch_size",
        "the network's own device is used; move the network": "device",
        "use la.update(data) to add data to a fit": "override",
        "the likelihood says the loss": "lossfn loss_fn criterion",
        "use la.functional(x, variance_only=True)": "diagonal_output diag",
        "use progress=True": "verbose progress_bar",
    }
)

# In the package.
PACKAGE = rows(
    {
        "use pw.fit(..., structure='diag')": "DiagLaplace",
        "use pw.fit(..., structure='kron')": "KronLaplace",
        "use pw.fit(..., structure='full')": "FullLaplace",
        "use pw.fit, whose structure= says how curvature is stored": ("ParametricLaplace BaseLaplace baselaplace"),
        LOW_RANK: "LowRankLaplace",
        FUNCTIONS: (
            "FunctionalLaplace BaseFunctionalLaplace FunctionalLLLaplace FunctionalApproximation VaLLA ELLA SoDSampler"
        ),
        "use pw.fit(..., weights='last_layer')": (
            "LLLaplace KronLLLaplace DiagLLLaplace FullLLLaplace LastLayerSubnetMask FeatureExtractor lllaplace"
        ),
        "use pw.fit(..., weights=pw.Subnetwork(...))": (
            "SubnetLaplace FullSubnetLaplace DiagSubnetLaplace LargestMagnitudeSubnetMask RandomSubnetMask "
            "LargestVarianceDiagLaplaceSubnetMask LargestVarianceSWAGSubnetMask SubnetMask subnetlaplace"
        ),
        "use pw.fit(..., weights=[...]) with names or patterns": "ModuleNameSubnetMask ParamNameSubnetMask",
        "use la.tune() after training": "marglik_training",
        "choose the curvature by curvature= of pw.fit": (
            "BackPackGGN BackPackEF CurvlinopsGGN CurvlinopsEF CurvlinopsHessian AsdlGGN AsdlEF AsdlHessian "
            "GGNInterface EFInterface CurvatureInterface BackPackInterface CurvlinopsInterface AsdlInterface"
        ),
        "options take texts, such as likelihood='classification' of pw.fit": (
            "Likelihood SubsetOfWeights HessianStructure PriorStructure TuningMethod PredType LinkApprox"
        ),
    }
)

# Values of options.
VALUES = rows(
    {
        LOW_RANK: "lowrank low_rank",
        FUNCTIONS: "gp sod nystrom variational functional",
        "give a value, such as weights=pw.Subnetwork.largest_variance(100)": "subnetwork",
    }
)
