"""Reading captures: the modules behind the names that umstack.capture exports."""
