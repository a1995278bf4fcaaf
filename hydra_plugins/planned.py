"""Hydra's sweeper of this project (`hydra/sweeper=planned`, the default): hands the jobs that run.py has planned to a
launcher of Hydra's, where one is chosen; without one run.py runs them itself.

Hydra's basic sweeper composes every job twice, and one that does not compose ends the sweep. Here the jobs that the
plan refuses are left out, and all others go to whatever Hydra launcher was chosen, in one batch. The folder's name and
place are Hydra's condition for a plugin.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from pipeline import side_by_side, sweep


class PlannedSweeper(Sweeper):
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        plugins = Plugins.instance()
        self.launcher = plugins.instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.folder = config.hydra.sweep.dir

    def sweep(self, arguments: list[str]) -> Any:
        launcher = self.launcher
        assert launcher is not None

        def launch(batch: Sequence[Sequence[str]]) -> Any:
            return [launcher.launch(batch, initial_job_idx=0)]

        return side_by_side.launch_all(launch, sweep.TO_LAUNCH, Path(self.folder))
