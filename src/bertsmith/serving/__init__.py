"""The HTTP service: loaded models behind their own API and those of OpenAI, text-embeddings-inference and Cohere.

- `scheduler`: texts of all requests share batches, computed by one thread
- `models`: models by name, loaded when first asked for, replaced when their folder changes
- `operations`: what a model can be asked, as functions of a batch
- `requests`, `errors`: bodies within limits, and answers to bad ones
- `routes`: one file for each API; `page`: the page at /, files of `static`; `app` puts them together, `server` runs them
"""
