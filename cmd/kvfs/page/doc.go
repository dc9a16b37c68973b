// Package page is the web page of a daemon, which shows its node and what it knows of the cluster. It only reads.
//
//	Handler   the page over HTTP, and its numbers for requests with the token
//	Token     reads the token from its file, or makes it
//	Source    collects the numbers in a daemon
//	Log       keeps the latest warnings and errors of a logger
//
// # Access
//
// The page itself is the same for everyone and has no numbers. The numbers have names of blocks, so they need the token.
// This is so on loopback, too, because other users of the machine reach it. The browser sends the token in the header
// Authorization. A cookie would be worse: browsers add it to requests that other sites cause, and send it to every port of
// the host. The server refuses names that are not its own. So a site cannot reach it by changing the address of the site's
// name (DNS rebinding).
package page
