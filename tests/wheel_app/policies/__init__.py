"""A folder of the application that happens to have a name of ours."""

OWNER = "the app"
