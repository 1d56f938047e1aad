"""Studies: many runs described by one file, trained in fleets, resumable, stored as rows of JSON.

`study.toml → RunSpec(hash) → fleet → rows on disk → summary`. Reading rows needs no torch.
"""

from tacit.studies.describe.spec import RunSpec
from tacit.studies.describe.study import Study, load_study
from tacit.studies.runner import run
from tacit.studies.store.folder import read_rows
from tacit.studies.tabular import records

__all__ = ["RunSpec", "Study", "load_study", "read_rows", "records", "run"]
