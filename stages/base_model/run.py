"""`base_model`: train a small model from nothing on generated text, or take a pretrained one as it is.

Training differs from an ordinary loop in that there is no data to store: step s writes its own documents, so a stage
resumes at any step on any number of ranks. All tokens of a document carry loss, question and answer, as in pretraining.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.artifacts import Artifact
from pipeline.tracking import Context, Metrics
from stages.base_model.config import BaseModelConfig
from stages.base_model.corpus import Corpus, make_corpus
from stages.base_model.pretrained import take
from stages.base_model.scratch import new_policy
from stages.parts.data.problems import load_problems
from stages.parts.data.splits import identities
from stages.parts.data.template import render_conversation
from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.sft import sft_loss
from stages.parts.policy.batch import aligned_microbatches, pad_batch
from stages.parts.policy.distributed import all_sum
from stages.parts.policy.loop import run_steps
from stages.parts.policy.output import save_trained
from stages.parts.policy.schedule import learning_rate
from stages.parts.policy.train_engine import TrainEngine, build_engine


def run(cfg: BaseModelConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Write the output port `model`; final metrics."""
    if cfg.model.source == "pretrained":
        return take(cfg, context)
    facts, held_out = {}, set()
    if "problems" in inputs:
        facts, held_out = inputs["problems"].facts, held_out_identities(inputs["problems"].path)
    return train(cfg, make_corpus(cfg, facts, held_out), context)


def train(cfg: BaseModelConfig, corpus: Corpus, context: Context) -> Metrics:
    engine = build_engine(new_policy(cfg.model, cfg.seed), cfg, context)

    def one_step(step: int) -> tuple[Metrics, Metrics]:
        documents = corpus.documents(step)[context.rank :: context.world_size]
        return training_step(engine, cfg, documents, learning_rate(step, cfg)), {}

    metrics = run_steps(engine, cfg, context, one_step, {"train/tokens": "train/total_tokens"})
    save_trained(engine, context.workdir, cfg, context)
    return metrics


def training_step(
    engine: TrainEngine, cfg: BaseModelConfig, documents: list[list[dict[str, str]]], rate: float
) -> Metrics:
    """One optimizer step on this rank's documents; metrics are of the whole step."""
    policy = engine.policy
    # Only answers carry loss: a random problem cannot be predicted, and trying to drowns what can be learnt.
    rows = [render_conversation(policy.tokenizer, document) for document in documents]
    sequences, tokens = all_sum([float(len(rows)), float(sum(sum(mask) for _, mask in rows))])
    counts = BatchCounts(sequences, tokens, cfg.model.context_length)
    nll = 0.0
    for members in aligned_microbatches([len(ids) for ids, _ in rows], cfg.tokens_per_microbatch):
        ids = [rows[index][0] for index in members]
        masks = [[float(flag) for flag in rows[index][1]] for index in members]
        batch = pad_batch(ids, masks, policy.pad_id, policy.device)
        loss, sums = sft_loss(engine.logps(batch).logps_BT, batch.mask_BT, counts)
        engine.backward(loss)
        nll += float(sums["nll"])
    result = engine.step(rate)
    [nll] = all_sum([nll])
    return {
        "train/loss": nll / tokens,
        "train/tokens": tokens,
        "train/grad_norm": result.grad_norm,
        "train/learning_rate": rate,
        "train/skipped": float(result.skipped),
    }


def held_out_identities(problems: Path) -> set[str]:
    """What must not occur in the text: the wordings of the dev and test problems, and the problems behind them."""
    held_out = [problem for split in ("dev", "test") for problem in load_problems(problems, split)]
    return {identity for problem in held_out for identity in identities(problem)}
