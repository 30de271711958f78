"""A pre-training run, from settings to summary.json."""

import json
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from data_pipeline import tokenizers
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.stream import PairStream
from objectives import pair_objective
from objectives.mlm import MaskedLM

from . import checkpoint
from .batches import Feeder, Layout, mean_tokens
from .config import PretrainConfig, as_dict, check, identity
from .defaults import default_corpus, default_model
from .engine import (
    build_engine,
    full_settings,
    precision_of,
    read_deepspeed_config,
    set_learning_rate,
    start_distributed,
    world,
)
from .evaluate import SEED, evaluate
from .metrics import FlopCounter, Log, figures, padding_share, peak_tflops, summed
from .model import STATS, PairModel, load_model, weights_fingerprint
from .release import MODEL_FOLDER, write_release
from .schedule import learning_rate
from .step import is_out_of_memory, out_of_memory_text, train_step, try_largest
