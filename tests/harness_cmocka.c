/* How the harness fails a cmocka test. */
#include "harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <setjmp.h>
#include <cmocka.h>

void harness_fail(const char *format, ...)
{
    char text[HARNESS_TEXT_BYTES + 200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail_msg("%s", text);
    abort(); /* cmocka has jumped away */
}
