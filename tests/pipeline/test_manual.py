"""The manual page follows the files: no group without a line, no choice without a sentence."""

from __future__ import annotations

import pytest

from pipeline.manual import GROUPS, OF_PIPELINES, choices, page, sentence
from pipeline.messages import CONF, root_groups

FILES = [path for group in (*GROUPS, *OF_PIPELINES) for path in sorted((CONF / group).glob("*.yaml"))]


def test_every_group_has_a_line():
    assert set(GROUPS) == set(root_groups())
    assert {*GROUPS, *OF_PIPELINES, "hydra"} == {path.name for path in CONF.iterdir() if path.is_dir()}


@pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}/{path.stem}" for path in FILES])
def test_every_choice_has_a_sentence(path):
    assert len(sentence(path)) > 20, f"{path} should open with a comment that says what it is"


def test_a_sentence_ends_where_prose_does(tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text("# @package _global_\n# Dr. GRPO (a; b): like so,\n# and on. Then more.\nkey: 1\n# late\n")
    assert sentence(file) == "Dr. GRPO (a; b): like so, and on"
    file.write_text("# A picture:\n#\n#     a -> b\n")
    assert sentence(file) == "A picture"


def test_the_page_is_a_template_without_names():
    assert "$" not in choices().replace("$$", "")
    assert "${" not in page() and 'eval "$(python run.py' in page()
