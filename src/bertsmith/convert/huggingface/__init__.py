"""Import and export of Hugging Face checkpoints.

`folder` reads and writes a whole folder; `config` converts config.json, `names` and `weights` map tensor names, `mapping`
converts state dicts, `tasks` the heads of fine-tuned models, `tokenizer` the tokenizer; `reformer` imports Reformers, and
`hub` downloads from the hub.
"""
