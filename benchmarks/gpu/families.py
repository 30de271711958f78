"""Whether packed rows give what ``transformers`` gives on padded ones: losses, logits and gradients, every family."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from data_pipeline.corpus import Corpus
from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from objectives import parse_mixture
from objectives.mlm import MaskedLM
from pretrain.batches import to_tensors
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import PairModel, load_model

from .materials import Bench, Row
from .ours import ON_GPU

FP32_CLOSE = 1e-4  # relative, of logits and gradients
BF16_ROUNDING = 2.0  # packed bf16 may be this many times as far from padded fp32 as padded bf16 is
PAIRS = 24  # with --quick 4
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def compare_families(bench: Bench) -> Iterator[Row]:
    """A small model of each family on the device, in fp32 and bf16, dropout off."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for family in FAMILIES:
        folder = bench.small_model(family)
        tokenizer = load_tokenizer(folder)
        masking = MaskedLM(tokenizer.mask_token_id, len(tokenizer))
        mixture = parse_mixture("ssp").read_from(Corpus(bench.corpus("bert"), verify=False))
        template = read_pair_template(tokenizer)
        stream = PairStream(mixture, template=template, seed=1, max_length=128, masking=masking)
        batch = stream.batch(0, 4 if bench.quick else PAIRS)
        ours = load_model(folder, seed=1)[0].eval()
        plain = Padded(ours).eval()
        exact = compute_padded(plain.to(DEVICE), batch)
        packed = compute_packed(ours.to(DEVICE), batch)
        apart = {name: _measure_distance(packed[name], exact[name]) for name in exact}
        yield Row(f"{family}, fp32", {f"{k} apart": v for k, v in apart.items()}, max(apart.values()) <= FP32_CLOSE)
        half = compute_padded(plain.bfloat16(), batch)
        packed = compute_packed(ours.bfloat16(), batch)
        apart = {name: _measure_distance(packed[name], exact[name]) for name in exact}
        theirs = {name: _measure_distance(half[name], exact[name]) for name in exact}
        figures = {f"{k} apart": v for k, v in apart.items()} | {f"padded {k} apart": v for k, v in theirs.items()}
        yield Row(f"{family}, bf16", figures, all(apart[k] <= BF16_ROUNDING * theirs[k] + FP32_CLOSE for k in apart))


class Padded(nn.Module):
    """The two models of ``transformers`` that a release names, with a PairModel's weights, on their own attention."""

    def __init__(self, ours: PairModel) -> None:
        super().__init__()
        config = type(ours.config).from_dict(ours.config.to_dict())
        config._attn_implementation = "eager"
        self.family = ours.family
        self.classifier = getattr(transformers, ours.family.classifier)(config)
        self.classifier.load_state_dict(ours.classifier.state_dict())
        self.masked_lm = getattr(transformers, ours.family.masked_lm)(config)
        encoder = {k: v for k, v in ours.classifier.state_dict().items() if k in self.masked_lm.state_dict()}
        self.masked_lm.load_state_dict({**encoder, **_of_masked_lm(ours)}, strict=False)
        # one encoder, so that its gradient is that of both losses
        setattr(self.masked_lm, self.masked_lm.base_model_prefix, self.classifier.base_model)
        self.masked_lm.get_output_embeddings().weight = self.classifier.get_input_embeddings().weight


def _of_masked_lm(ours: PairModel) -> dict[str, torch.Tensor]:
    """The masked-LM head's tensors, by the names that they have in the model of ``transformers``."""
    return dict(ours.mlm_head.state_dict())


def compute_packed(model: PairModel, batch: Batch) -> dict[str, torch.Tensor]:
    """Pair logits, logits at the masked positions and the gradient of the embeddings and of every layer."""
    model.zero_grad()
    pair, masked = model.logits(to_tensors(batch, DEVICE))
    return _finish(pair, masked, batch, model.classifier)


def compute_padded(model: Padded, batch: Batch) -> dict[str, torch.Tensor]:
    """The same of padded rows, with an attention mask."""
    model.zero_grad()
    starts = torch.from_numpy(batch.starts).long()
    lengths = starts.diff()
    place = torch.arange(int(lengths.max()))
    mask = place < lengths[:, None]
    names = ("input_ids", "token_type_ids") if model.family.token_types else ("input_ids",)
    inputs: dict[str, Any] = {"attention_mask": mask.long().to(DEVICE)}
    for name in names:
        row = torch.zeros(mask.shape, dtype=torch.long)
        row[mask] = torch.from_numpy(getattr(batch, name)).long()
        inputs[name] = row.to(DEVICE)
    if "input_ids" in inputs and model.classifier.config.pad_token_id is not None:
        inputs["input_ids"][~mask.to(DEVICE)] = model.classifier.config.pad_token_id
    pair = model.classifier(**inputs).logits[:, 0]
    logits = model.masked_lm(**inputs).logits[mask.to(DEVICE)]
    return _finish(pair, logits[torch.from_numpy(batch.masked_positions).to(DEVICE)], batch, model.classifier)


def _finish(pair: torch.Tensor, masked: torch.Tensor, batch: Batch, classifier: nn.Module) -> dict[str, torch.Tensor]:
    labels, targets = torch.from_numpy(batch.labels).to(DEVICE), torch.from_numpy(batch.masked_labels).to(DEVICE)
    loss = F.binary_cross_entropy_with_logits(pair.float(), labels.float()) + F.cross_entropy(masked.float(), targets)
    loss.backward()
    base: Any = classifier.base_model
    gradient = torch.cat([p.grad.float().flatten() for p in base.parameters() if p.grad is not None])
    found = {"loss": loss, "pair logits": pair, "masked logits": masked, "gradient": gradient}
    return {name: value.detach().double().cpu() for name, value in found.items()}


def _measure_distance(one: torch.Tensor, two: torch.Tensor) -> float:
    """The distance of two tensors by the length of the second."""
    return float((one - two).norm() / two.norm())
