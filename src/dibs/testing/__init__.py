"""Support for tests: the fixtures `dibs_client` and `dibs_aio_client`, and the contract suite for stores."""
