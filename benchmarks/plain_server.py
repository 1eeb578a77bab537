"""The server that people write first: FastAPI around a transformers pipeline. `python plain_server.py FOLDER PORT`."""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline


class Body(BaseModel):
    inputs: str


def build(folder: str) -> FastAPI:
    app, classify = FastAPI(), pipeline("text-classification", model=folder, device="cpu")

    @app.post("/predict")
    def predict(body: Body) -> dict:
        return classify(body.inputs, truncation=True)[0]

    @app.get("/health")
    def health() -> dict:
        return {}

    return app


if __name__ == "__main__":
    uvicorn.run(build(sys.argv[1]), port=int(sys.argv[2]), log_level="error")
