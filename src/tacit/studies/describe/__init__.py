"""What a study is: one run, a study file, its overrides, the study files that come with the package."""
