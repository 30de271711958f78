import pytest
import torch
import torch.nn.functional as F

from pretrain.modeling.siamese.losses import CONTRASTIVE_SUMS, add_up_queries, bar_known, compare_texts


@pytest.fixture
def embeddings():
    """Six pairs and a negative of each."""
    torch.manual_seed(0)
    return F.normalize(torch.randn(6, 3, 8, dtype=torch.float64), dim=-1)


def test_the_loss_is_that_of_sentence_transformers(embeddings):
    """Its MultipleNegativesRankingLoss, of the same vectors."""
    from sentence_transformers import losses

    class Embedded(torch.nn.Module):
        def forward(self, features):
            return {"sentence_embedding": features}

    columns = list(embeddings.unbind(1))
    ranking = losses.MultipleNegativesRankingLoss(Embedded(), scale=20.0)
    assert torch.allclose(compare_texts(embeddings, slice(0, 6), 0.05).losses.mean(), ranking(columns, None))


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


# Documents and texts of five pairs of a query, its text and a negative of its own. Queries 0 and 2 are of one document;
# 1 and 3 have the same text; the negative of 4 is of the document of 1, and that of 2 reads as the text of 0.
GROUPS = torch.tensor(
    [
        [[1, 10], [1, 20], [1, 30]],
        [[2, 11], [2, 21], [6, 31]],
        [[1, 12], [1, 22], [7, 20]],
        [[3, 13], [3, 21], [5, 33]],
        [[4, 14], [5, 24], [2, 34]],
    ]
)


def test_texts_of_its_document_and_texts_like_its_own_are_no_negatives_of_a_query():
    barred = {(row, text) for row, text in bar_known(GROUPS, slice(0, 5)).nonzero().tolist()}
    of_documents = {(0, 2), (2, 0), (2, 5), (1, 9), (4, 8)}  # the negative of 0, text 5, stays its own
    alike = {(0, 7), (1, 3), (3, 1)}
    assert barred == of_documents | alike
    same_query = GROUPS.clone()
    same_query[4, 0, 1] = GROUPS[0, 0, 1]  # another document with the title of the first
    barred = {(row, text) for row, text in bar_known(same_query, slice(0, 5)).nonzero().tolist()}
    assert barred == of_documents | alike | {(0, 4), (0, 9), (4, 0), (4, 5)}
