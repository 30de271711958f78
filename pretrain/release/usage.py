"""The code with which a card says how its model is used; it needs nothing of this project."""

from .metadata import HERE, Stated

_TEXT = """```python
from sentence_transformers import CrossEncoder

model = CrossEncoder("{where}", max_length={max_length})
print(model.rank("{question}", ["{first}", "{second}"]))
```

With `transformers` alone:

```python
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{where}")
model = AutoModelForSequenceClassification.from_pretrained("{where}").eval()
candidates = ["{first}", "{second}"]
questions = ["{question}"] * len(candidates)
inputs = tokenizer(questions, candidates, padding=True, truncation=True, max_length={max_length}, return_tensors="pt")
with torch.no_grad():
    scores = torch.sigmoid(model(**inputs).logits[:, 0])
print(scores.tolist())
```"""
QUESTION = "What do cats eat?"
CANDIDATES = ("Cats are hunters that live on mice and birds.", "The railway opened in 1893.")


def format_usage(stated: Stated, max_length: int) -> str:
    """The code that ranks two candidates, by sentence-transformers and by transformers; both give the same scores."""
    first, second = CANDIDATES
    return _TEXT.format(
        where=stated.repository or HERE, max_length=max_length, question=QUESTION, first=first, second=second
    )


def format_loading(stated: Stated, auto_class: str, folder: str) -> str:
    """The call that loads the model in a folder within the release."""
    if stated.repository:
        return f'`{auto_class}.from_pretrained("{stated.repository}", subfolder="{folder}")`'
    return f'`{auto_class}.from_pretrained("{HERE}/{folder}")`, or with `subfolder="{folder}"` from the Hub'
