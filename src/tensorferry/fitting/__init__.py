"""`ferry fit`: a table in, a run out, with a model that is checked on rows it has not seen."""
