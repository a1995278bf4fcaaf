"""What the loss sees in the first rollout, checked before anything is trained on it (scripts/audit.py shows it)."""

from __future__ import annotations

from pipeline.tracking import Context, Metrics
from stages.parts.data.audit import Row as AuditRow
from stages.parts.data.audit import check_first_step
from stages.parts.experience.collect import Row
from stages.parts.policy.model import Policy


def look_at_first_rollout(rows: list[Row], policy: Policy, context: Context) -> Metrics:
    """Check this rank's rows that carry loss; a rollout that teaches nothing is survived, so none may be left."""
    trained = [row for row in rows if row.trained]
    if not trained:
        return {}
    result = check_first_step(audit_rows(trained), policy.tokenizer, policy.end_ids)
    for note in result.notes:
        context.note(f"first rollout: {note}")
    return result.metrics()


def audit_rows(rows: list[Row]) -> list[AuditRow]:
    """Rows with their advantages, aligned with the tokens of prompt and response."""
    audited = []
    for row in rows:
        prompt, response = row.rollout.prompt_ids, row.rollout.response_ids
        label = f"group {row.group}, reward {row.reward:g}" + ("" if row.trained else ", left out of the loss")
        mask = [False] * len(prompt) + [row.trained and flag > 0 for flag in row.rollout.mask]
        advantages = [0.0] * len(prompt) + row.advantages
        audited.append(AuditRow(prompt + response, mask, advantages, row.rollout.truncated, label))
    return audited
