// Package pki makes and loads the certificates with which nodes identify each other.
//
// A cluster has one certificate authority (CreateCA). Each node has a certificate of the CA (Issue)
// with "<name>.kvfs" as a DNS name, for both ends of a connection. A node shows its certificate on
// every connection, and accepts only certificates of the same CA (Loader.Server, Loader.Client).
//
// # Rotation
//
// Loader.Watch uses changed files, so no rotation needs a restart. Loaded files count from the next
// handshake on; open connections go on. The file of the CA may hold several certificates, all of
// which are trusted. To rotate the CA, add a new CA to the file on all nodes, then replace the
// certificates, then remove the old CA.
//
// # Time
//
// Certificates are valid from an hour before they are made, so nodes whose clocks differ by that
// much accept each other's.
package pki
