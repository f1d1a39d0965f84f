/* The smallest function: copies stdin to stdout. What is left of a call's time is the price of starting a process. */
#include <unistd.h>

static char buffer[64 * 1024];

int main(void) {
    ssize_t count;
    while ((count = read(0, buffer, sizeof(buffer))) > 0)
        for (ssize_t done = 0; done < count;) {
            ssize_t written = write(1, buffer + done, count - done);
            if (written < 0)
                return 1;
            done += written;
        }
    return count < 0;
}
