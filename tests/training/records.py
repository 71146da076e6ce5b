"""What tests compare of two runs."""


def losses(records):
    return [(r["step"], r.get("loss"), r.get("val_loss")) for r in records]
