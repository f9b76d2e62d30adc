"""What a report's files are called in the folder of its run or sweep."""

PAGE, TEXT, TABLE = DRAWN = ("report.html", "report.md", "results.csv")
