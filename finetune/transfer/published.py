"""What Rücklé et al., 2020 ("MultiCQA") published, to be seen beside one's own figures: table 3, in percent."""

TARGETS = (
    "LAS-Travel",
    "LAS-Cooking",
    "LAS-Apple",
    "LAS-Academia",
    "LAS-Aviation",
    "InsuranceQA",
    "AskUbuntu",
    "WikiPassageQA",
    "SemEval17",
)
# P@1 on the first six, MAP on the others; BERT base. MT: one model of all; AF: AdapterFusion.
ROWS = {
    "best of 140 single forums": (65.4, 58.1, 43.1, 56.5, 65.0, 35.3, 63.29, 67.85, 51.13),
    "MT largest": (64.5, 56.7, 40.9, 56.0, 65.3, 32.8, 63.23, 66.32, 50.11),
    "AF largest": (63.4, 57.7, 42.9, 59.1, 65.9, 28.6, 63.11, 66.99, 50.88),
    "MT balanced": (65.0, 60.0, 43.2, 55.7, 65.1, 38.2, 63.40, 68.28, 48.31),
    "AF balanced": (62.2, 58.0, 43.5, 59.4, 66.2, 29.8, 62.93, 67.51, 47.95),
    "MT all": (66.1, 60.3, 43.0, 57.0, 66.4, 31.5, 63.32, 68.20, 49.81),
    "MT balanced, extended data": (67.8, 60.9, 46.5, 58.9, 69.1, 34.9, 65.07, 67.70, 48.59),
    "MT all, extended data": (72.4, 63.1, 45.8, 61.1, 68.0, 34.7, 64.12, 66.82, 52.25),
}
PUBLISHED = {"targets": TARGETS, "rows": ROWS}
