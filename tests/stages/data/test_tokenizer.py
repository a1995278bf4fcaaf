"""The embedded tokenizer: one token a byte, lossless, deterministic, its hashes known without torch."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.parts.data.fingerprints import template_hash, tokenizer_hash
from stages.parts.data.tokenizer import VOCAB_SIZE, build_tokenizer, tokenizer_facts

TOKENIZER = build_tokenizer()


def test_ascii_is_one_token_a_character_and_think_tags_are_text():
    ids = TOKENIZER("<think>3+4=7</think>\\boxed{7}")["input_ids"]
    assert len(ids) == 1 + 5 + 1 + 9
    assert ids[1] == ord("3")
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<think>3+4=7</think>\\boxed{7}"


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_lossless_on_any_text(text):
    if not any(token in text for token in TOKENIZER.all_special_tokens):
        assert TOKENIZER.decode(TOKENIZER(text)["input_ids"], skip_special_tokens=True) == text


def test_saved_tokenizer_has_the_declared_facts(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    facts = tokenizer_facts()
    assert tokenizer_hash(tmp_path) == facts["tokenizer_hash"]
    assert template_hash(tmp_path) == facts["template_hash"]
    assert facts["vocab_size"] == VOCAB_SIZE == len(TOKENIZER) == 264
    assert facts["end_tokens"] == sorted(TOKENIZER.convert_tokens_to_ids(["<|end|>", "<|endoftext|>"]))


def test_golden_hashes():
    """A change here changes every embedded model: bump RECIPE_VERSION of base_model with it."""
    assert tokenizer_facts()["tokenizer_hash"] == "db21d7a6f83b6fa6"
    assert tokenizer_facts()["template_hash"] == "5036639f7b6ec2fa"


def test_facts_need_no_torch():
    code = "import sys; from stages.parts.data.tokenizer import tokenizer_facts; tokenizer_facts(); "
    code += "assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
