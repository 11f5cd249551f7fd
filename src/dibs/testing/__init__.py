"""For tests: the fixtures `dibs_client` and `dibs_aio_client`, and the behavioural suite of a store."""
