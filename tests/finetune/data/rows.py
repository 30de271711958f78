"""What tests compare of a data set."""


def rows_of(data):
    """(question id, question, answer id, answer, label) of each row."""
    ids, texts = data.answer_ids.to_pylist(), data.answers.to_pylist()
    return [
        (data.question_ids[q], data.questions[q], ids[row], texts[row], int(data.labels[row]))
        for row, q in enumerate(data.question_of)
    ]
