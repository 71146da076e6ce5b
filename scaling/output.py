"""The files of a study: scaling.md, scaling.png, points.csv, fits.csv, multipliers.csv."""

from host.disk import make_folder, write_whole

import dataclasses
from pathlib import Path

from ablation.plan import PlanError
from reports import picture
from reports.plural import counted
from scaling import figure, page, points, tables
from scaling.answers import against, answers
from scaling.command import ScaleConfig
from scaling.points import Point

# first bytes of the files that scale.py wrote and may replace
OURS = {
    "scaling.md": page.HEAD,
    "points.csv": "family,size,tokens_per_parameter,seed,",
    "fits.csv": "law,family,sample,",
    "multipliers.csv": "baseline,family,amount,loss,",
}


def refuse(folder: Path):
    """Raises PlanError where a file of another origin lies in the place of one of ours."""
    for name, start in OURS.items():
        path = folder / name
        if path.is_dir() or (path.is_file() and not path.read_bytes().startswith(start.encode())):
            raise PlanError(f"{path} exists and is none of scale.py's: choose another --out_dir")
    path = folder / "scaling.png"
    if path.is_dir() or (path.exists() and not (folder / "scaling.md").exists()):
        raise PlanError(f"{path} exists, and no scaling.md of scale.py shows it: choose another --out_dir")


def refuse_to_lose(folder: Path, found: list[Point]):
    """Raises PlanError where drawing points in this folder would lose some that stand there."""
    if (folder / "scaling.json").exists():
        raise PlanError(
            f"{folder} is the folder of a study, whose own command draws its runs: choose another --out_dir"
        )
    path = folder / "points.csv"
    there = points.read([str(path)]) if path.exists() and path.stat().st_size else []
    lost = {points.key(p) for p in there} - {points.key(p) for p in found}
    if lost:
        raise PlanError(
            f"{path} holds {counted(len(lost), 'run')} that --points does not name: name this file too, or "
            "choose another --out_dir"
        )


def baselines(config: ScaleConfig, names: dict[str, str]) -> list[str]:
    """The families that --baseline means, by their names or by what they are called; the first family
    without it. Raises PlanError.
    """
    found = []
    for name in config.baseline or [next(iter(names))]:
        meant = [family for family, called in names.items() if name in (family, called)]
        if not meant or meant[0] in found:
            why = "named twice" if meant else f"none of the families: {', '.join(names.values())}"
            raise PlanError(f"baseline={name} is {why}")
        found.append(meant[0])
    return found


def write(
    found: list[Point],
    names: dict[str, str],
    folder: Path,
    config: ScaleConfig,
    look: picture.Look,
    commands: str,
    lines: list[str] = (),
) -> list[str]:
    """Write all files of the points into a folder -> the answers and the files' names, for the screen.

    names: what to call the families. commands: those that the points are of, a line each. lines: further
    remarks.
    """
    if not any(p.rule and p.loss is not None for p in found):
        return [*lines, "no run has ended at the rule's learning rate: there is nothing to draw yet"]
    first, *rest = baselines(config, names)
    made = answers(found, config.shared_e, config.samples, config.losses, first)
    others = [against(made, baseline, config.losses) for baseline in rest]
    told = [*lines, *page.remarks(made, names)]
    make_folder(folder)
    texts = {
        "scaling.md": page.page(made, others, names, told, commands, "scaling.png"),
        "fits.csv": page.fits_csv(made),
        "multipliers.csv": page.multipliers_csv([made, *others]),
    }
    for name, text in texts.items():
        write_whole(folder / name, text)
    points.write(folder / "points.csv", found)
    called = [names[family] for family in made.families]
    look = dataclasses.replace(look, labels=look.labels and called)  # the baseline is first
    drawn = figure.draw(made, others, called, picture.Look(labels=look.labels))
    picture.write(drawn, folder / "scaling.png", own=True)
    written = [f"page: {folder / 'scaling.md'}", f"picture: {folder / 'scaling.png'}"]
    written += [f"numbers: {folder / name}" for name in ("points.csv", "fits.csv", "multipliers.csv")]
    if config.plot:
        picture.write(figure.draw(made, others, called, look), Path(config.plot))
        written.append(f"picture: {config.plot}")
    screen = ["what was trained:", tables.trained(made, names), ""]
    for a in [made, *others]:
        baseline = names[a.baseline]
        screen += [f"multipliers: how many times as much {baseline} needs:", tables.multipliers(a, names)]
        for title, some in (
            ("how they change from the first loss to the last:", a.trends and tables.trends(a, names)),
            (f"where curves cross that of {baseline}:", tables.crossings(a, names)),
        ):
            screen += [title, some, ""] if some else []
    return [*screen, *told, *written]
