"""Other people's clients, unchanged, against `bertsmith serve`: `make test-clients` runs it where only they are installed.

    python tests/clients.py BERTSMITH_PYTHON

starts a server of mini-en with that interpreter, and asks it with openai, LangChain and huggingface_hub.
"""

import re
import subprocess
import sys
import time
import urllib.request

import numpy as np
from huggingface_hub import InferenceClient
from langchain_openai import OpenAIEmbeddings
from openai import NotFoundError, OpenAI

TEXTS = ["one text", "another"]


def ask(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    answer = client.embeddings.create(model="mini-en", input=TEXTS)
    vectors = np.array([row.embedding for row in answer.data])
    assert vectors.shape == (2, 512) and [model.id for model in client.models.list()] == ["mini-en"]
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    try:
        client.embeddings.create(model="text-embedding-3-small", input="x")
    except NotFoundError as error:
        assert "served: mini-en" in str(error)
    else:
        raise AssertionError("a model that is not served is answered")
    print("openai: embeddings, models, the error of an unknown model")
    chain = OpenAIEmbeddings(base_url=f"{url}/v1", api_key="none", model="mini-en", check_embedding_ctx_length=False)
    assert np.allclose(chain.embed_documents(TEXTS), vectors, atol=1e-3)
    assert np.allclose(chain.embed_query(TEXTS[0]), vectors[0], atol=1e-3)
    print("LangChain: embed_documents, embed_query")
    hub = InferenceClient(model=url)
    assert np.allclose(np.array(hub.feature_extraction(TEXTS[0])).reshape(-1), vectors[0], atol=1e-3)
    assert hub.fill_mask("Paris is the [MASK] of France.")[0].token_str == "capital"
    similarities = hub.sentence_similarity(TEXTS[0], other_sentences=TEXTS)
    assert np.allclose(similarities, vectors @ vectors[0], atol=1e-2)
    print("huggingface_hub: feature_extraction, fill_mask, sentence_similarity")


def main(python: str) -> None:
    command = [python, "-m", "bertsmith", "serve", "model=mini-en", "port=0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "http://" in line)
        url = re.search(r"http://\S+", line)[0]  # type: ignore[index]
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/ready", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        ask(url)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0, "the server did not end well"


if __name__ == "__main__":
    main(sys.argv[1])
