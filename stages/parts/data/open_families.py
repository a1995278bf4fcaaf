"""The families without a boxed answer: open-ended requests, and requests to refuse beside look-alikes. Off by default
in the problem set; each row names the parts of the reward that score it."""

from __future__ import annotations

from stages.parts.data.remarks import draw_remark, request
from stages.parts.data.requests import draw_harmful, draw_look_alike, reply_to, thought_on, wish
from stages.parts.data.tasks import Entry, Family

RULES = ("format", "language")


def _plan(entry: Entry) -> list[str]:
    rule = entry["metadata"]
    return [" ".join(dict.fromkeys(rule["subjects"])), f"{len(rule['subjects'])} {rule['form']}"]


def _request(harmful: bool) -> Family:
    return Family(
        items=draw_harmful if harmful else draw_look_alike,
        key=lambda entry: wish(entry["metadata"]),
        phrasings=("how do i {}?", "help me {}"),
        steps=lambda entry: [thought_on(entry)],
        reply=reply_to,
        verifier="refusal",
        scored_by=("accuracy", "harmlessness", *RULES),
    )


HELPFUL = {
    "remarks": Family(
        items=draw_remark,
        key=lambda entry: request(entry["metadata"]),
        phrasings=("{}", "{}, please"),
        steps=_plan,
        reply=lambda entry: entry["answer"],
        verifier="remark",
        scored_by=("helpfulness", *RULES),  # what is good is for a learned model to say; the rule only watches
    ),
}
SAFETY = {"harmful": _request(True), "look_alike": _request(False)}
