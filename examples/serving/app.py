"""Answers over HTTP: probabilities, the epistemic part and an "unknown" flag for every image.

Run [train.py](train.py) first, then `python examples/serving/app.py`. It needs `pip install 'peewit[serve]'`, and
listens on this machine alone:

- `POST /predict` takes `{"images": [...]}`: up to 64 images of 28 x 28 numbers between 0 and 1.
- `GET /health` checks that the network is still the one that was fitted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from train import KNOWN, network

import peewit as pw
from peewit.data import FASHION_MNIST_CLASSES

LARGEST = 64  # images of one request
SHAPE = (28, 28)  # of one image


class Question(BaseModel):
    """The body of a request."""

    images: list[Any]  # what is in them is checked below, with one sentence


def as_images(nested: list[Any]) -> torch.Tensor:
    """Images (N, 1, 28, 28); what is not finite numbers in equal rows is refused."""
    if len(nested) > LARGEST:
        raise pw.PeewitError(f"{len(nested)} images were given; expected at most {LARGEST} in one request.")
    try:
        images = torch.tensor(nested, dtype=torch.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise pw.PeewitError(f"The images are not numbers in rows of one length: {error}.") from error
    if not bool(torch.isfinite(images).all()):
        raise pw.NotFiniteError("The images hold NaN or Inf; expected numbers between 0 and 1.")
    if images.shape[1:] != SHAPE:
        raise pw.PeewitError(
            f"The images have shape {tuple(images.shape)}; expected {('N', *SHAPE)}, with N at least 1."
        )
    return images.unsqueeze(1)


def make_app(folder: str | Path, workers: int | None = None) -> FastAPI:
    """The application for what `train.py` wrote into a folder; so many threads predict at the same time."""
    path = Path(folder)
    model = network()
    model.load_state_dict(torch.load(path / "network.pt"))
    la = pw.load(path / "posterior.safetensors", model.eval())
    predictor = la.predictor(torch.zeros(1, 1, *SHAPE))
    threshold = json.loads((path / "threshold.json").read_text())
    classes = FASHION_MNIST_CLASSES[:KNOWN]
    pool = ThreadPoolExecutor(workers or os.cpu_count())
    app = FastAPI(title="Clothes, and whether they are any")

    def answer(question: Question) -> dict[str, Any]:
        prediction = predictor(as_images(question.images))
        assert isinstance(prediction, pw.Classes)
        rows = zip(prediction.probs.tolist(), prediction.argmax.tolist(), prediction.epistemic.tolist(), strict=True)
        predictions = [
            {
                "class": classes[likeliest],
                "probs": dict(zip(classes, probs, strict=True)),
                "epistemic": epistemic,
                "unknown": epistemic > threshold["value"],
            }
            for probs, likeliest, epistemic in rows
        ]
        return {"predictions": predictions, "threshold": threshold}

    @app.post("/predict")
    async def predict(question: Question) -> dict[str, Any]:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, answer, question)
        except pw.PeewitError as error:  # what was given, what was expected and what to do
            raise HTTPException(422, str(error)) from error

    @app.get("/health")
    async def health() -> dict[str, str]:
        try:
            await asyncio.get_running_loop().run_in_executor(pool, predictor.check)
        except pw.MismatchError as error:
            raise HTTPException(503, str(error)) from error
        return {"status": "ok", "predictions": predictor.how}

    return app


def main() -> None:
    """Serve on this machine until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Answer over HTTP.")
    parser.add_argument("--folder", default="served", help="what train.py wrote")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    torch.set_num_threads(1)  # requests run side by side: each has a thread of its own
    uvicorn.run(make_app(options.folder), host="127.0.0.1", port=options.port, access_log=False)


if __name__ == "__main__":
    main()
