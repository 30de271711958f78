import pytest
import torch
import torch.nn.functional as F

from pretrain.modeling.siamese.losses import CONTRASTIVE_SUMS, add_up_queries, compare_texts


@pytest.fixture
def embeddings():
    """Six pairs and a negative of each."""
    torch.manual_seed(0)
    return F.normalize(torch.randn(6, 3, 8, dtype=torch.float64), dim=-1)


def test_the_loss_is_that_of_sentence_transformers(embeddings):
    """Its MultipleNegativesRankingLoss, and the symmetric one, of the same vectors."""
    from sentence_transformers import losses

    class Embedded(torch.nn.Module):
        def forward(self, features):
            return {"sentence_embedding": features}

    columns = list(embeddings.unbind(1))
    ranking = losses.MultipleNegativesRankingLoss(Embedded(), scale=20.0)
    assert torch.allclose(compare_texts(embeddings, slice(0, 6), 0.05).losses.mean(), ranking(columns, None))
    symmetric = losses.MultipleNegativesSymmetricRankingLoss(Embedded(), scale=20.0)
    ours = compare_texts(embeddings[:, :2], slice(0, 6), 0.05, symmetric=True).losses.mean()
    assert torch.allclose(ours, symmetric(columns[:2], None))


def test_some_of_the_queries_fare_as_among_all(embeddings):
    whole, some = compare_texts(embeddings, slice(0, 6), 0.05), compare_texts(embeddings, slice(2, 5), 0.05)
    for one, other in zip(whole, some, strict=True):
        assert torch.allclose(one[2:5].double(), other.double())


def test_a_model_that_says_the_same_of_all_texts_ranks_none_first():
    same = F.normalize(torch.ones(5, 2, 4), dim=-1)
    compared = compare_texts(same, slice(0, 5), 0.05)
    assert compared.ranks.tolist() == [3.0] * 5  # in the middle
    part = torch.tensor([0, 0, 1, 1, 1])
    names = [f"{objective}/{name}" for objective in "ab" for name in CONTRASTIVE_SUMS]
    sums = dict(zip(names, add_up_queries(compared, part, 2).tolist(), strict=True))
    assert (sums["a/queries"], sums["b/queries"]) == (2, 3)
    assert (sums["a/firsts"], sums["b/firsts"]) == (0, 0)
    assert sums["b/reciprocal_ranks"] == pytest.approx(1.0)
    assert sums["a/pair_loss"] == pytest.approx(2 * torch.tensor(5.0).log().item(), rel=1e-5)
