"""The process that runs math-verify: one JSON line in, one out. Started and killed by `math_process.py`.

A process of its own, because symbolic algebra has no bound on time or memory (`9^{9^{9^{9}}}`), and math-verify's own
limit is an alarm signal, which only a main thread can have.
"""

from __future__ import annotations

import json
import logging
import resource
import sys

_MEMORY_BYTES = 2 * 1024**3


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    from math_verify import parse, verify

    def expressions(text: str) -> list:
        return parse(f"\\boxed{{{text}}}", parsing_timeout=None, raise_on_error=False)

    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        try:
            parsed = expressions(gold)
            judged: bool | None = None
            if any(not isinstance(part, str) for part in parsed):
                judged = answer is None or bool(verify(parsed, expressions(answer), timeout_seconds=None))
        except Exception as error:  # any failure of the algebra is a verdict on its input, never the end of the worker
            print(json.dumps({"error": type(error).__name__}), flush=True)
        else:
            print(json.dumps({"right": judged}), flush=True)


if __name__ == "__main__":
    main()
