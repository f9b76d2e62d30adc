"""Reports of runs and sweeps: HTML, Markdown, CSV and the terminal, all from a summary."""

PAGE, TEXT, TABLE = DRAWN = ("report.html", "report.md", "results.csv")
