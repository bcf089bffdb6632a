#!/bin/sh
# man_page.sh ENTWINE: prints the man page, made from what the tool's help says and from the table
# of variables in cli/base/environment.c.
entwine=${1:?usage: man_page.sh ENTWINE}
sources=$(dirname "$0")/..

# A dash is a minus sign there, a line must not start like a request.
escape() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\\&&/"; }
as_it_is() { printf '.nf\n' && escape && printf '.fi\n'; }

version=$("$entwine" --version | sed 's/^entwine \([^ ]*\).*/\1/') || exit 1
cat <<END
.TH ENTWINE 1 "" "entwine $version" "User Commands"
.SH NAME
entwine \\- GEMM with ReduceScatter, AllReduce or AllGather, overlapped tile by tile
.SH SYNOPSIS
.B entwine
.I COMMAND
[options]
.br
.B entwine help
[\\fICOMMAND\\fR]
.br
.B entwine \\-\\-version
.SH DESCRIPTION
Every measurement checks its results: inputs are small integers whose products
and sums are exact in every type.
Data goes to standard output and everything else to standard error.
.PP
Numbers may carry K, M or G (powers of 1024).
\\fBbench\\fR and \\fBtune\\fR also take lists 8192,16384 and ranges
1024\\-8192*2 and 1024\\-4096+512, and run their cartesian product.
.SH COMMANDS
END
"$entwine" --help | sed -n '/^exit status/q; s/^  \([a-z][a-z]*\) .*/\1/p' | grep -v '^help$' |
    while read -r command; do
        printf '.SS '
        "$entwine" help "$command" | sed -n '1s/^usage: //p' | escape
        "$entwine" help "$command" | sed 1,2d | as_it_is
    done
printf '.SH EXIT STATUS\n'
"$entwine" --help | sed -n '/^exit status/,/^$/p' | sed -e 's/^exit status: */  /' -e '/^$/d' | as_it_is
printf '.SH ENVIRONMENT\n'
awk -F'"' '/^    \{"ENTWINE_/ { print ".TP\n" $2 "\n" $4 }' "$sources/cli/base/environment.c" |
    sed -e 's/-/\\-/g'
