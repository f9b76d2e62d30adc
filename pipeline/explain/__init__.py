"""Why a stage takes the time that it takes."""
