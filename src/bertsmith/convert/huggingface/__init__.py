"""Import and export of Hugging Face checkpoints.

`folder` reads and writes a whole folder; `config` converts config.json, `family` says what differs between families and
`names` describes each, `weights` maps tensor names, `mapping` converts state dicts, `tasks` the heads of fine-tuned models,
`tokenizer` the tokenizer, `sentence_transformers` the modules around an encoder. `custom_code` writes the models that no class
of transformers fits, with their code `modeling_bertsmith`. `reformer` imports Reformers, and `hub` downloads from the hub.
"""
