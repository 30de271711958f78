import torch

from pretrain.batches import make_largest_batch, to_tensors
from pretrain.modeling.pair_model import load_model
from pretrain.planning.memory import compute_states, estimate_activations


def test_states_by_hand():
    """A billion parameters on 4 GPUs: GB are bytes a parameter."""
    p = 10**9

    def gigabytes(*arguments):
        s = compute_states(p, *arguments)
        return [x / 1e9 for x in (s.weights, s.gradients, s.master, s.moments, s.host)]

    assert gigabytes(0, "fp32", 4) == [4, 4, 0, 8, 0]
    assert gigabytes(1, "bf16", 4) == [2, 4, 1, 2, 0]
    assert gigabytes(2, "bf16", 4) == [2, 1, 1, 2, 0]
    assert gigabytes(3, "bf16", 4) == [0.5, 1, 1, 2, 0]
    assert gigabytes(2, "fp16", 4) == [2, 0.5, 1, 2, 0]
    assert gigabytes(2, "fp32", 4) == [4, 1, 1, 2, 0]
    assert gigabytes(2, "bf16", 4, True) == [2, 0, 0, 0, 4]
    assert compute_states(p, 2, "bf16", 1).on_gpu == 18e9


def test_activations_by_hand():
    """RoBERTa-base in bf16: 34 h bytes a token and layer, and 2 bytes an entry of the vocabulary and masked token; 10
    where a replacement is drawn."""
    config = type("Config", (), {})()
    config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.vocab_size = 768, 3072, 12, 50265
    assert estimate_activations([config], 1000, 150, "bf16") == 1000 * 12 * 34 * 768 + 150 * 50265 * 2
    assert estimate_activations([config], 1000, 150, "bf16", sampled=True) == 1000 * 12 * 34 * 768 + 150 * 50265 * 10


def test_activations_are_about_what_a_backward_pass_keeps(make_model, tiny_corpus, make_stream):
    """On a CPU, without dropout in attention, whose matrices would then be kept."""
    options = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 2}
    model, _ = load_model(str(make_model("bert", attention_probs_dropout_prob=0.0, **options)), seed=1)
    batch = make_largest_batch(make_stream(tiny_corpus, masking=True), 8)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that its place is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**to_tensors(batch, torch.device("cpu")), scales={"mlm": 1.0, "pair": 1.0})
    masked = len(batch.masked_labels)
    estimate = estimate_activations([model.config], batch.num_tokens, masked, "fp32")
    measured = sum(size for size, _ in kept.values())
    # a CPU keeps more: padded copies around attention, dropout's masks as numbers of 4 bytes
    assert 1.0 <= measured / estimate <= 1.3
