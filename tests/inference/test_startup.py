"""The first answer in a new process: nothing is imported that only torch.compile or training needs."""

import subprocess
import sys

SLOW_MODULES = ("sympy", "triton", "transformers", "torch._dynamo", "torch._inductor")
LIST_NEW_MODULES = f"""
import sys, torch
before = set(sys.modules)  # older versions of torch import some of them
{{code}}
print(sorted(name for name in set(sys.modules) - before if (name + ".").startswith({tuple(f"{m}." for m in SLOW_MODULES)})))
"""
FILL_MASK = 'import bertsmith; bertsmith.load("mini-en", device="cpu").fill("Paris is the [MASK] of France.")'
EVERY_MIXER = """
from tests.contracts.test_mixers import CAUSAL, MIXERS, HIDDEN_SIZE, random_inputs
before = set(sys.modules)
from bertsmith.model.mixers import Longformer
for config in [*MIXERS, *CAUSAL, Longformer(num_attention_heads=4, attention_window=(8,))]:
    with torch.inference_mode():
        config.build(HIDDEN_SIZE).eval()(*random_inputs())
"""


def slow_modules_of(code: str) -> str:
    command = [sys.executable, "-c", LIST_NEW_MODULES.replace("{code}", code)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_first_answer_imports_no_compiler():
    assert slow_modules_of(FILL_MASK) == "[]"


def test_mixers_import_no_compiler_in_eager_mode():
    assert slow_modules_of(EVERY_MIXER) == "[]"


def test_compiled_model_imports_the_compiler_where_it_is_needed():
    assert "torch._dynamo" in slow_modules_of("import bertsmith.model.mixers.longformer.uncompiled")
