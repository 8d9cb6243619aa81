//! Controllers of Task and TaskGateway: they make and mend what Envoy Gateway and the routers read, and report. They
//! never write the spec of what they reconcile, and never touch a session.
