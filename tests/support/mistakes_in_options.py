"""What goes wrong with names, priors, noises and curvature: the last rows of the table."""

from __future__ import annotations

import torch
from torch import nn

import peewit as pw
from mistakes import INF, NAN, Row, T, V

NOISE = ("expected a positive standard deviation",)
PRECISION = ("prior precision", "expected positive finite numbers")

NAMES = [
    Row("the prior's name elsewhere", lambda w: w.fit(prior_precision=1.0), T, ("did you mean 'prior'?",)),
    Row("capitals", lambda w: w.fit(structure="DIAG"), V, ("did you mean 'diag'?",)),
    Row("the structure's name elsewhere", lambda w: w.fit(structure="KFAC"), V, ("did you mean 'kron'?",)),
    Row("the task's name elsewhere", lambda w: w.fit(likelihood="multiclass"), V, ("did you mean 'classification'?",)),
    Row("a link in capitals", lambda w: w.la.predict(w.x, link="MC"), V, ("did you mean 'mc'?",)),
    Row("the link's name elsewhere", lambda w: w.la.predict(w.x, link_approx="mc"), T, ("did you mean 'link'?",)),
    Row("the method's name elsewhere", lambda w: w.la.tune("marglik"), V, ("did you mean 'evidence'?",)),
    Row("a loader for a method", lambda w: w.la.tune([(w.x, w.y)]), T, ("method is a list", "validation=")),
    Row("the data's name elsewhere", lambda w: w.la.tune("grid", val_loader=()), T, ("did you mean 'validation'?",)),
    Row(
        "a seed for a generator", lambda w: w.la.predict(w.x, generator=0), T, ("generator is a int", "torch.Generator")
    ),
    Row(
        "a seed to draw with",
        lambda w: w.la.predict(w.x).sample(2, generator=0),
        T,
        ("generator is a int", "expected a torch.Generator"),
    ),
    Row("a device nobody has", lambda w: w.la.to("gpu"), V, ("device='gpu'", "'cuda:0'")),
    Row("a dtype for a device", lambda w: w.la.to(torch.float64), V, ("device=torch.float64", "fit again")),
    Row("probabilities of a posterior", lambda w: w.la.probs, AttributeError, ("use la.predict(x).probs",)),
    Row("tuning's name elsewhere", lambda w: w.la.optimize_prior_precision(), AttributeError, ("use la.tune()",)),
    Row("a misspelt question", lambda w: w.la.predic(w.x), AttributeError, ("did you mean 'predict'?",)),
    Row(
        "likelihood",
        lambda w: w.fit(likelihood="classifcation"),
        V,
        ("'classifcation' is not known", "did you mean 'classification'?", "Known:"),
    ),
    Row("structure", lambda w: w.fit(structure="kfron"), V, ("'kfron' is not known", "did you mean 'kron'?", "Known:")),
    Row("curvature", lambda w: w.fit(curvature="gnn"), V, ("'gnn' is not known", "did you mean 'ggn'?")),
    Row("curvature of products", lambda w: w.products(curvature="hesian"), V, ("did you mean 'hessian'?",)),
    Row("likelihood of products", lambda w: w.products(likelihood="regresion"), V, ("did you mean 'regression'?",)),
    Row(
        "choice of weights", lambda w: w.fit(weights="last_layr"), V, ("'last_layr' fits no parameter", "'last_layer'")
    ),
    Row(
        "name of a weight",
        lambda w: w.fit(weights=["0.weigt"]),
        V,
        ("'0.weigt' fits no parameter", "nearest names are ['0.weight'"),
    ),
    Row(
        "name of a mask",
        lambda w: w.fit(weights={"0.bais": torch.ones(5, dtype=torch.bool)}, structure="diag"),
        V,
        ("'0.bais'", "not a parameter", "0.bias"),
    ),
    Row(
        "option of fit",
        lambda w: w.fit(structre="kron"),
        T,
        ("no option 'structre'", "did you mean 'structure'?", "It takes"),
    ),
    Row(
        "option of functional",
        lambda w: w.la.functional(w.x, jiont=True),
        T,
        ("no option 'jiont'", "did you mean 'joint'?"),
    ),
    Row("option of the evidence", lambda w: w.la.log_evidence(priors=1.0), T, ("did you mean 'prior'?",)),
    Row("option of products", lambda w: w.products(curvatur="ggn"), T, ("did you mean 'curvature'?",)),
    Row(
        "a loss for a likelihood",
        lambda w: w.fit(likelihood=nn.CrossEntropyLoss()),
        T,
        ("CrossEntropyLoss", "Did you mean 'classification'?"),
    ),
    Row(
        "a number for a likelihood",
        lambda w: w.fit(likelihood=3),
        T,
        ("likelihood is a int", "expected one of the names classification"),
    ),
    Row(
        "a number for a structure",
        lambda w: w.fit(structure=3),
        T,
        ("structure is a int", "expected one of the names", "kron"),
    ),
    Row(
        "nothing for a curvature",
        lambda w: w.fit(curvature=None),
        T,
        ("curvature is a NoneType", "expected one of the names", "ggn"),
    ),
    Row("a number for weights", lambda w: w.fit(weights=3), T, ("weights is a int", "expected 'all', 'last_layer'")),
    Row("no weights", lambda w: w.fit(weights=[]), V, ("No weights are selected", "expected at least one")),
    Row("no adapters", lambda w: w.fit(weights="lora"), V, ("weights='lora'", "no parameter's name contains 'lora_'")),
    Row(
        "a mask of numbers",
        lambda w: w.fit(weights=torch.ones(48)),
        V,
        ("dtype torch.float32", "expected (48,) booleans"),
    ),
    Row(
        "a subnetwork too large",
        lambda w: w.fit(weights=pw.Subnetwork.random(99), structure="diag"),
        V,
        ("size 99", "from 1 to 48"),
    ),
    Row(
        "a subnetwork by name", lambda w: pw.Subnetwork("varience", 3), V, ("by='varience'", "did you mean 'variance'?")
    ),
    Row(
        "a subnetwork in kron",
        lambda w: w.fit(weights=pw.Subnetwork.random(3)),
        V,
        ("single elements", "use structure='diag' or 'full'"),
    ),
    Row(
        "kron's approximation",
        lambda w: pw.Kron(approx="expanded"),
        V,
        ("approx='expanded'", "expected one of ('expand', 'reduce', 'auto')"),
    ),
    Row("ekfac's bias", lambda w: pw.EKFAC(bias="both"), V, ("bias='both'", "expected one of ('separate', 'joint')")),
    Row("no samples of labels", lambda w: pw.MonteCarlo(0), V, ("samples=0", "expected a positive whole number")),
    Row(
        "the Hessian in kron",
        lambda w: w.fit(curvature="hessian"),
        V,
        ("structure=Kron", "use structure='full', or curvature='ggn'"),
    ),
]

PRIORS = [
    *(
        Row(f"precision {value}, {name}", lambda w, ask=ask, v=value: ask(w, v), V, PRECISION)
        for value in (0, -1.0, NAN, INF)
        for name, ask in {
            "fit": lambda w, v: w.fit(prior=v),
            "with_prior": lambda w, v: w.la.with_prior(v),
            "log_evidence": lambda w, v: w.la.log_evidence(prior=torch.tensor(v)),
            "layerwise": lambda w, v: pw.Prior.layerwise([1.0, v]),
            "groups": lambda w, v: pw.Prior.groups({"*": v}),
        }.items()
    ),
    Row(
        "precision as text", lambda w: w.fit(prior="1"), T, ("prior is a str", "expected a positive number or a Prior")
    ),
    Row(
        "no precision",
        lambda w: w.la.with_prior(None),
        T,
        ("prior is a NoneType", "expected a positive number or a Prior"),
    ),
    Row("text in a prior", lambda w: pw.Prior.scalar("1"), T, ("Prior.scalar", "is a str", "expected numbers")),
    Row(
        "many for a scalar",
        lambda w: w.fit(prior=torch.ones(4)),
        V,
        ("4 precisions were given", "expected one", "Prior.layerwise"),
    ),
    Row(
        "too few for layers",
        lambda w: w.fit(prior=pw.Prior.layerwise([1.0, 2.0])),
        V,
        ("2 precisions were given", "expected 1 or 5"),
    ),
    Row(
        "too many for this prior",
        lambda w: w.la.with_prior(torch.ones(3)),
        V,
        ("3 precisions were given", "expected 1 for"),
    ),
    Row(
        "a group misspelt",
        lambda w: w.fit(prior=pw.Prior.groups({"0.weigt": 1.0, "*": 2.0})),
        V,
        ("'0.weigt' fits no parameter", "did you mean '0.weight'?"),
    ),
    Row(
        "a group misspelt later",
        lambda w: w.la.with_prior(pw.Prior.groups({"0.baas": 1.0, "*": 2.0})),
        V,
        ("'0.baas' fits no parameter", "did you mean '0.bias'?"),
    ),
    Row(
        "a weight without group",
        lambda w: w.fit(prior=pw.Prior.groups({"0": 1.0})),
        V,
        ("fits '1.weight'", "add '*' for the rest"),
    ),
    Row(
        "groups as a list",
        lambda w: pw.Prior.groups([1.0]),
        T,
        ("[1.0] was given", "expected a mapping from patterns", "'*'"),
    ),
    Row("no groups", lambda w: pw.Prior.groups({}), T, ("{} was given", "expected a mapping")),
    Row("grouping of a prior", lambda w: pw.Prior("scalr", torch.ones(1)), V, ("'scalr'", "did you mean 'scalar'?")),
    Row("NaN mean", lambda w: pw.Prior.scalar(1.0, mean=NAN), V, ("mean nan", "expected finite numbers")),
    Row("mean as text", lambda w: pw.Prior.scalar(1.0, mean="zero"), T, ("mean is a str", "expected numbers")),
    Row(
        "length of a mean",
        lambda w: w.fit(prior=pw.Prior.scalar(1.0, mean=torch.ones(4))),
        V,
        ("mean has 4 numbers", "expected 1 or 48"),
    ),
    Row(
        "beyond float32",
        lambda w: w.la.with_prior(1e-50).log_evidence(),
        V,
        ("1e-50", "outside the range of torch.float32", "float64"),
    ),
    *(
        Row(f"noise {value}", lambda w, v=value: pw.Gaussian(noise=v), V, (f"noise={value!r}", *NOISE))
        for value in (0, -1.0, NAN, INF)
    ),
    *(
        Row(
            f"noise {value} of the evidence",
            lambda w, v=value: w.regression.log_evidence(noise=v),
            V,
            (f"noise={value!r}", *NOISE),
        )
        for value in (0, -1.0, NAN)
    ),
    Row("no noise", lambda w: pw.Gaussian(noise=None), T, ("noise is a NoneType", *NOISE)),
    Row(
        "noise as text", lambda w: pw.Gaussian(noise="residual"), V, ("'residual'", "expected a number", "'residuals'")
    ),
    Row(
        "noise of classes",
        lambda w: w.la.log_evidence(noise=1.0),
        V,
        ("noise=1.0", "Categorical has no noise", "leave it out"),
    ),
    Row(
        "several noises of the evidence",
        lambda w: w.regression.log_evidence(noise=torch.ones(3)),
        V,
        ("3 numbers", "expected one"),
    ),
    Row(
        "noises of other outputs",
        lambda w: w.fit((w.x, w.r), pw.Gaussian(torch.ones(2))),
        V,
        ("2 numbers", "3 outputs"),
    ),
    Row(
        "negative class weights",
        lambda w: pw.Categorical(weight=torch.tensor([1.0, -1.0])),
        V,
        ("weight", "expected one finite number per class"),
    ),
    Row(
        "smoothing of two",
        lambda w: pw.Categorical(label_smoothing=2),
        V,
        ("label_smoothing=2", "expected a number from 0 to 1"),
    ),
    Row("a number for an energy", lambda w: pw.Custom(3), T, ("Custom(int)", "expected a function")),
    Row(
        "singular curvature",
        lambda w: w.fit((w.x[:2], w.y[:2]), structure="full", prior=1e-30).predict(w.x),
        V,
        ("not positive definite", "smallest eigenvalue is", "larger prior precision"),
    ),
    Row(
        "singular curvature, sampled",
        lambda w: w.fit((w.x[:2], w.y[:2]), structure="block", prior=1e-30).sample(2),
        V,
        ("not positive definite", "larger prior precision"),
    ),
    Row(
        "indefinite Hessian",
        lambda w: w.fit(
            (w.x * 5, w.r * 10), "regression", structure="full", curvature="hessian", prior=1e-3
        ).log_evidence(),
        V,
        ("smallest eigenvalue is -", "larger prior precision", "Hessian(clip=True)"),
    ),
    Row(
        "a noise that overflows",
        lambda w: w.fit((w.x, w.r), pw.Gaussian(1e-20)).predict(w.x),
        V,
        ("noise 1e-20", "outside the range of torch.float32", "float64"),
    ),
]
