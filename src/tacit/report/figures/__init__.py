"""The figures of the paper, one file each or one per family; `registry` finds every `Figure` of every file here."""
